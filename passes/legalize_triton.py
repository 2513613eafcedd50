"""From the one form of Triton-GPU IR that lowerings emit, Triton 3.6's, to the form that another version reads."""

from __future__ import annotations

import re

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from compilemask.dialects.triton.ttg_module import verify_gpu_module
from compilemask.errors import TargetError
from compilemask.passes.legalize_copy_segments import LegalizeCopySegmentsPass
from compilemask.passes.legalize_descriptor_arguments import LegalizeDescriptorArgumentsPass
from compilemask.passes.legalize_descriptor_types import LegalizeDescriptorTypesPass
from compilemask.passes.legalize_partition_captures import LegalizePartitionCapturesPass

OLDEST = (3, 6)
SINCE: tuple[tuple[tuple[int, int], type[ModulePass]], ...] = (
    ((3, 7), LegalizePartitionCapturesPass),
    ((3, 7), LegalizeCopySegmentsPass),
    ((3, 9), LegalizeDescriptorArgumentsPass),
    ((3, 8), LegalizeDescriptorTypesPass),
)
"""What changed in which version, in the order in which the passes run."""


def legalize(module: ModuleOp, triton_version: str) -> ModuleOp:
    """A verified copy of a module in the form that a version of Triton, such as "3.7.1", reads.

    Versions newer than those known are taken to read the newest known form. Raises TargetError for versions before 3.6
    and text that is no version, VerifyException if the module is one that Triton could not compile.
    """
    version = _parse(triton_version)
    verify_gpu_module(module)
    copy = module.clone()
    for since, kind in SINCE:
        if version >= since:
            kind().apply(Context(), copy)
    verify_gpu_module(copy)
    return copy


def _parse(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)(\D|$)", text)
    if found is None:
        raise TargetError(f"'{text}' is not a version of Triton such as 3.7.1")
    version = (int(found[1]), int(found[2]))
    if version < OLDEST:
        raise TargetError(f"kernels in Triton-GPU IR need Triton {OLDEST[0]}.{OLDEST[1]} or later, found {text}")
    return version
