"""What torch.compile calls as it is. A module of its own, imported when something is traced: TorchDynamo, which this
needs, takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from compilemask.runtime.calls import operator
from compilemask.runtime.descriptor import Descriptor

descriptor_for = cast("Callable[..., Descriptor]", torch.compiler.disable(operator.descriptor_for))
