"""The `tt` dialect: Triton IR, the portable level that Triton's own compiler lowers to every GPU.

Only what CompileMask emits is defined. Property names, operand segments and enum numbers are those of Triton's own
dialect, so the generic form (`printing.print_generic`) is text that Triton parses; custom syntax follows Triton's too.
Shapes are static.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, StringAttr, SymbolNameConstraint
from xdsl.dialects.utils import AbstractYieldOperation, parse_func_op_like, print_func_op_like
from xdsl.ir import Attribute, Block, Dialect, Region
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.triton.tt_compute import (
    COMPUTE_OPS,
    BitcastOp,
    DotOp,
    ReduceOp,
    ReduceReturnOp,
    ScanOp,
    ScanReturnOp,
)
from compilemask.dialects.triton.tt_memory import (
    MEMORY_OPS,
    AddPtrOp,
    AtomicRMWOp,
    IntToPtrOp,
    LoadOp,
    PtrToIntOp,
    StoreOp,
)
from compilemask.dialects.triton.tt_tensors import (
    TENSOR_OPS,
    BroadcastOp,
    ExpandDimsOp,
    GetNumProgramsOp,
    GetProgramIdOp,
    JoinOp,
    MakeRangeOp,
    ReshapeOp,
    SplatOp,
    SplitOp,
    TransOp,
    UnsplatOp,
)
from compilemask.dialects.triton.types import PointerType, require

__all__ = [
    "TT",
    "AddPtrOp",
    "AtomicRMWOp",
    "BitcastOp",
    "BroadcastOp",
    "DotOp",
    "ExpandDimsOp",
    "FuncOp",
    "GetNumProgramsOp",
    "GetProgramIdOp",
    "IntToPtrOp",
    "JoinOp",
    "LoadOp",
    "MakeRangeOp",
    "PointerType",
    "PtrToIntOp",
    "ReduceOp",
    "ReduceReturnOp",
    "ReshapeOp",
    "ReturnOp",
    "ScanOp",
    "ScanReturnOp",
    "SplatOp",
    "SplitOp",
    "StoreOp",
    "TransOp",
    "UnsplatOp",
]


@irdl_op_definition
class FuncOp(IRDLOperation):
    """A kernel over scalar and pointer arguments, which may have attributes such as `tt.divisibility = 16 : i32`."""

    name = "tt.func"
    body = region_def()
    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    sym_visibility = opt_prop_def(StringAttr)
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    res_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(
        self,
        name: str,
        inputs: Sequence[Attribute],
        outputs: Sequence[Attribute] = (),
        region: Region | None = None,
        *,
        visibility: str | None = "public",
        arg_attrs: ArrayAttr[DictionaryAttr] | None = None,
        res_attrs: ArrayAttr[DictionaryAttr] | None = None,
    ) -> None:
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "function_type": FunctionType.from_lists(inputs, outputs),
                "sym_visibility": None if visibility is None else StringAttr(visibility),
                "arg_attrs": arg_attrs,
                "res_attrs": res_attrs,
            },
            regions=[region if region is not None else Region(Block(arg_types=inputs))],
        )

    def verify_(self) -> None:
        inputs, outputs = self.function_type.inputs.data, self.function_type.outputs.data
        entry = self.body.blocks.first
        if entry is None:
            raise VerifyException(f"{self.name}: @{self.sym_name.data} has no body")
        require(tuple(entry.arg_types) == inputs, self, "entry block arguments differ from the function type")
        if self.arg_attrs is not None:
            require(len(self.arg_attrs) == len(inputs), self, "one attribute dictionary per argument is needed")
        returned = entry.last_op
        if isinstance(returned, ReturnOp):
            require(tuple(returned.arguments.types) == outputs, self, "returned types differ from the function type")

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        visibility = parser.parse_optional_visibility_keyword()
        name, inputs, outputs, region, extra, arg_attrs, res_attrs = parse_func_op_like(
            parser, reserved_attr_names=("sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs")
        )
        func = cls(
            name,
            inputs,
            outputs,
            region,
            visibility=visibility.data if isinstance(visibility, StringAttr) else visibility,
            arg_attrs=arg_attrs,
            res_attrs=res_attrs,
        )
        if extra is not None:
            func.attributes |= extra.data
        return func

    def print(self, printer: Printer) -> None:
        if self.sym_visibility is not None:
            printer.print_string(f" {self.sym_visibility.data}")
        print_func_op_like(
            printer,
            self.sym_name,
            self.function_type,
            self.body,
            self.attributes,
            arg_attrs=self.arg_attrs,
            res_attrs=self.res_attrs,
            reserved_attr_names=("sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs"),
        )


@irdl_op_definition
class ReturnOp(AbstractYieldOperation[Attribute]):
    """Ends a `tt.func`; a kernel returns nothing."""

    name = "tt.return"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(FuncOp)))


TT = Dialect("tt", [FuncOp, ReturnOp, *TENSOR_OPS, *MEMORY_OPS, *COMPUTE_OPS], [PointerType])
