"""`tiling-to-tt`: attention that follows a descriptor becomes one Triton kernel, the same for all masks.

    module = attention_module(128, bf16, Precision.IEEE)       # func.func @attention with one tiling.attention
    kernel = emit(attention_op(module), AttentionConfig.choose(128, bf16, "cuda:90"))
    text = print_generic(kernel)                               # what Triton compiles

The kernel is the forward pass of flash attention (Dao, "FlashAttention-2", arXiv 2307.08691). Its grid is
(NQ * 128 / block_q, query heads, batches); `attention_frame.kernel_arguments` lists its arguments, and
`attention_score.score_arguments` those that a score modification adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import DYNAMIC_INDEX, AnyFloat, ModuleOp, TensorType, f32
from xdsl.ir import Attribute, Block, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from compilemask.dialects import tiling
from compilemask.dialects.tiling_score import region_of
from compilemask.errors import LoweringError
from compilemask.lowering.tiling_to_tt.attention_config import AttentionConfig
from compilemask.lowering.tiling_to_tt.attention_epilogue import store
from compilemask.lowering.tiling_to_tt.attention_frame import kernel_arguments, open_frame
from compilemask.lowering.tiling_to_tt.attention_full import full_runs
from compilemask.lowering.tiling_to_tt.attention_partial import partial_tiles
from compilemask.lowering.tiling_to_tt.attention_score import score_arguments
from compilemask.lowering.tiling_to_tt.attention_softmax import initial_state, prepare
from compilemask.lowering.tiling_to_tt.builder import KernelBuilder

__all__ = ["AttentionConfig", "TilingToTtPass", "attention_module", "attention_op", "emit"]

NAME = "attention"


def emit(op: tiling.AttentionOp, config: AttentionConfig, name: str = NAME) -> ModuleOp:
    """A module with one `tt.func`, the kernel of this attention. Raises LoweringError if there is none."""
    arguments = [*kernel_arguments(op.element_type, config.aligned), *score_arguments(op)]
    kb = KernelBuilder(name, arguments)
    frame = open_frame(kb, op, config)
    query, scale = prepare(frame, frame.load_query())
    state = partial_tiles(frame, initial_state(frame), query, scale)
    state = full_runs(frame, state, query, scale)
    store(frame, state, scale)
    return kb.finish()


def attention_module(
    head_dim: int,
    element_type: AnyFloat,
    precision: tiling.Precision = tiling.Precision.IEEE,
    score: tiling.ScoreOp | None = None,
) -> ModuleOp:
    """`func.func @attention(q, k, v, descriptor, scale, captured..., sink) -> (out, lse)` with a `tiling.attention`."""
    tensor = TensorType(element_type, [DYNAMIC_INDEX] * 3 + [head_dim])
    inputs: list[Attribute] = [tensor, tensor, tensor, tiling.DescriptorType(), f32]
    names = ["q", "k", "v", "descriptor", "scale"]
    if score is not None:
        inputs += score.captured
        names += [f"captured{number}" for number in range(len(score.captured))]
        if score.sink is not None:
            inputs.append(score.sink)
            names.append("sink")
    block = Block(arg_types=inputs)
    for argument, name in zip(block.args, names, strict=True):
        argument.name_hint = name
    attention = _attention_of(block, precision, score)
    results = [result for result in (attention.out, attention.lse) if result is not None]
    for result, name in zip(results, ("out", "lse"), strict=False):
        result.name_hint = name
    block.add_ops([attention, func.ReturnOp(*results)])
    module = ModuleOp([func.FuncOp(NAME, (inputs, [result.type for result in results]), Region(block))])
    module.verify()
    return module


def _attention_of(block: Block, precision: tiling.Precision, score: tiling.ScoreOp | None) -> tiling.AttentionOp:
    q, k, v, descriptor, scale, *captured = block.args
    if score is None:
        return tiling.AttentionOp(q, k, v, descriptor, scale, precision)
    sink = captured.pop() if score.sink is not None else None
    region = region_of(score)
    return tiling.AttentionOp(q, k, v, descriptor, scale, precision, region, captured, weights=score.weights, sink=sink)


def attention_op(module: ModuleOp) -> tiling.AttentionOp:
    """The one `tiling.attention` of a module."""
    found = [op for op in module.walk() if isinstance(op, tiling.AttentionOp)]
    if len(found) != 1:
        raise LoweringError(f"the module has {len(found)} tiling.attention operations, one is needed")
    return found[0]


@dataclass(frozen=True)
class TilingToTtPass(ModulePass):
    """Replaces each function that holds a `tiling.attention` by its kernel, for blocks of the given sizes."""

    name = "tiling-to-tt"

    block_q: int = 64
    block_kv: int = 64

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        config = AttentionConfig(self.block_q, self.block_kv)
        replace_attention(op, lambda attention, name: [emit(attention, config, name)])


def replace_attention(module: ModuleOp, kernels: Callable[[tiling.AttentionOp, str], Sequence[ModuleOp]]) -> None:
    """Replaces each function that holds a `tiling.attention` by its kernels, made from that and the function's name.

    Raises LoweringError if a function holds several.
    """
    for function in [child for child in module.ops if isinstance(child, func.FuncOp)]:
        attentions = [inner for inner in function.walk() if isinstance(inner, tiling.AttentionOp)]
        if not attentions:
            continue
        if len(attentions) > 1:
            raise LoweringError(f"@{function.sym_name.data} holds {len(attentions)} tiling.attention operations")
        made = [op for kernel in kernels(attentions[0], function.sym_name.data) for op in kernel.ops]
        for kernel in made:
            kernel.detach()
        Rewriter.replace_op(function, made, [])
