"""Operations on tensors with layouts: conversions between layouts, and inline PTX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AnyFloat, BoolAttr, IntegerAttr, IntegerType, StringAttr, TensorType, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    base,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure

from compilemask.dialects.triton.layouts import RegisterLayout
from compilemask.dialects.triton.ttg_types import layout_of
from compilemask.dialects.triton.types import element_of, encoding_of, require, shape_of

REGISTER_BITS, POINTER_BITS = 32, 64


@irdl_op_definition
class ConvertLayoutOp(IRDLOperation):
    """The same tensor in another register layout: through shuffles or shared memory, or for free."""

    name = "ttg.convert_layout"
    src = operand_def(base(TensorType))
    result = result_def(base(TensorType))
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue | Operation, layout: RegisterLayout) -> None:
        source = SSAValue.get(src).type
        result = TensorType(element_of(source), shape_of(source), layout)
        super().__init__(operands=[src], result_types=[result])

    def verify_(self) -> None:
        source, result = self.src.type, self.result.type
        before, after = layout_of(self, source), layout_of(self, result)
        same = shape_of(source) == shape_of(result) and element_of(source) == element_of(result)
        require(same, self, f"{source} and {result} differ in more than the layout")
        require(before.num_warps == after.num_warps, self, f"{source} and {result} lie in different numbers of warps")


@irdl_op_definition
class ElementwiseInlineAsmOp(IRDLOperation):
    """PTX on `packed_element` elements at a time, `$0`, `$1`, ... being results and then operands; scalars too.

    It runs as often as the elements need it, once per thread for scalars. `pure = false` keeps it in place.
    """

    name = "tt.elementwise_inline_asm"
    asm_string = prop_def(StringAttr)
    constraints = prop_def(StringAttr)
    pure = prop_def(BoolAttr)
    packed_element = prop_def(IntegerAttr)
    args = var_operand_def(AnyAttr())
    result = var_result_def(AnyAttr())
    MAX_PACKED: ClassVar[int] = 32

    def __init__(
        self,
        asm: str,
        constraints: str,
        args: Sequence[SSAValue | Operation],
        result_types: Sequence[Attribute],
        *,
        packed: int = 1,
        pure: bool = True,
    ) -> None:
        super().__init__(
            operands=[list(args)],
            result_types=[list(result_types)],
            properties={
                "asm_string": StringAttr(asm),
                "constraints": StringAttr(constraints),
                "pure": BoolAttr.from_bool(pure),
                "packed_element": IntegerAttr(packed, i32),
            },
        )

    def verify_(self) -> None:
        types = [*self.operand_types, *self.result_types]
        require(bool(self.result_types), self, "a result is needed; move an operand into it if there is none")
        require(len({shape_of(type_) for type_ in types}) == 1, self, "operands and results differ in shape")
        if isinstance(types[0], TensorType):
            require(len({encoding_of(type_) for type_ in types}) == 1, self, "layouts differ")
        packed = self.packed_element.value.data
        require(0 < packed <= self.MAX_PACKED and packed & (packed - 1) == 0, self, f"packed_element {packed}")
        parts = [part for part in self.constraints.data.split(",") if not part.strip().startswith("~")]
        outputs = sum(part.strip().startswith("=") for part in parts)
        wanted = [sum(map(self._registers, types)) for types in (self.result_types, self.operand_types)]
        found = [outputs, len(parts) - outputs]
        require(found == wanted, self, f"constraints of {found} results and operands, {wanted} are there")

    def _registers(self, type_: Attribute) -> int:
        """Registers of one evaluation: elements of less than 32 bits share them."""
        element = element_of(type_)
        width = element.bitwidth if isinstance(element, IntegerType | AnyFloat) else POINTER_BITS
        packed = self.packed_element.value.data
        return packed if width >= REGISTER_BITS else -(-packed * width // REGISTER_BITS)


COMPUTE_OPS: tuple[type[Operation], ...] = (ConvertLayoutOp, ElementwiseInlineAsmOp)
