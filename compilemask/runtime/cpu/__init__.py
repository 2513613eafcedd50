"""On the CPU: attention, its gradients and descriptors, in torch and numpy and by functions that MLIR compiled."""
