"""From a tiling to upstream MLIR for the CPU: scf, memref, vector, math and arith."""
