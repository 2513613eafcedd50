"""What the bodies of `mask.where` and `mask.lines` have in common: arithmetic on scalars."""

from __future__ import annotations

from xdsl.dialects.builtin import Float32Type, IndexType, IntegerType
from xdsl.ir import Operation, Region, SSAValue

from compilemask.dialects.function import MisplacedOperationError

_VALUES_OF_THE_CALL = ("mask.read", "mask.search", "mask.queries", "mask.keys")


def computes_scalars(op: Operation) -> bool:
    """Whether an operation is of arith or math and yields integers or floats."""
    return op.dialect_name() in ("arith", "math") and all(
        isinstance(result.type, IntegerType | IndexType | Float32Type) for result in op.results
    )


def verify_scalar_body(op: Operation, body: Region, terminator: type[Operation]) -> None:
    """Raises MisplacedOperationError if a body of an operation holds anything else."""
    for inner in body.block.ops:
        if inner.name not in _VALUES_OF_THE_CALL and not isinstance(inner, terminator) and not computes_scalars(inner):
            raise MisplacedOperationError(
                inner,
                f"the body of {op.name} holds arith on scalars, mask.read, mask.search, mask.queries and mask.keys",
            )


def depends_on(body: Region, argument: SSAValue) -> set[SSAValue]:
    """The values of a body that an argument of it has a part in, itself included."""
    found: set[SSAValue] = {argument}
    for op in body.block.ops:
        if not found.isdisjoint(op.operands):
            found.update(op.results)
    return found
