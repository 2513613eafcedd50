"""Score modifications: what attention does to scores before it masks them."""

from __future__ import annotations

from compilemask.score.alibi import alibi, alibi_slopes
from compilemask.score.from_score_mod import from_score_mod
from compilemask.score.relative_bias import relative_bias
from compilemask.score.score import Score
from compilemask.score.silu import silu
from compilemask.score.sink import sink
from compilemask.score.softcap import softcap

__all__ = ["Score", "alibi", "alibi_slopes", "from_score_mod", "relative_bias", "silu", "sink", "softcap"]
