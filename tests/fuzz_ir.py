"""Mutated IR: the parser and every pass take it or refuse it with an error of ours, and never anything else.

    python tests/fuzz_ir.py --seconds 1800     # `make fuzz`

A finding prints the text, the passes and what was raised; `--seed` gives it again.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from xdsl.context import Context

from compilemask.dialects.registry import make_context
from compilemask.errors import CompileMaskError, IRError
from compilemask.language.source import parse_source
from compilemask.lowering.pipeline import apply, lower
from compilemask.lowering.registry import known_passes
from compilemask.passes.instrument import observing
from compilemask.passes.observers import ReadBack, printed
from compilemask.tools.examples import EXAMPLES

HERE = Path(__file__).parent
PIECE = re.compile(r"^// -----$", re.MULTILINE)
TOKEN = re.compile(r"[%@#!^]?[\w.$-]+|->|[^\s\w]")
NUMBERS = ("0", "1", "-1", "127", "128", "2147483647", "-2147483648", "4294967296", "99999999999999999999", "1.5")
SLOW = ("prove",)
"""Passes that ask a solver: they run on fewer modules."""
LIMIT_SECONDS = 20
"""Processor time that one module may take; a pass that takes longer is a finding."""
LONGEST = 20_000
"""Characters of the longest text that is mutated."""


class TooSlow(BaseException):
    """A module took longer than `LIMIT_SECONDS`. Not an Exception: nothing in between may catch it."""


@dataclass
class Report:
    """What became of the modules that were tried."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of modules."""
        return sum(self.outcomes.values())


def corpus() -> list[str]:
    """IR of every level: the pieces of all test files, and the examples on their way down in both syntaxes."""
    texts = [piece for path in sorted(HERE.rglob("*.mlir")) for piece in PIECE.split(path.read_text())]
    for example in EXAMPLES.values():
        for level in ("mask", "interval", "tiling"):
            module = lower(example.mask(300).module(), level)
            texts += [printed(module), printed(module, generic=True)]
    without_comments = (re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE).strip() for text in texts)
    return [text for text in without_comments if 0 < len(text) <= LONGEST]


# ---- mutations ----


def mutate(text: str, others: Sequence[str], rng: random.Random) -> str:
    """The text with a few faults; half of the time such that it may stay valid, so that passes are reached."""
    if rng.random() < 0.5:
        return rng.choice(GENTLE)(text, rng.choice(others), rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        text = rng.choice(MUTATIONS)(text, rng.choice(others), rng)
    return text


def _operation(text: str, other: str, rng: random.Random) -> str:
    """Put another operation of the same dialect, or another comparison, in place of one."""
    names = list(re.finditer(r"\b(mask|interval|arith|tiling)\.\w+|\b[su]?[lg][te]\b", text))
    if not names:
        return text
    at = rng.choice(names)
    new = rng.choice([name[0] for name in names if name[1] == at[1]] + (["slt", "sge", "eq"] if not at[1] else []))
    return text[: at.start()] + new + text[at.end() :]


def _replace_token(text: str, other: str, rng: random.Random) -> str:
    """Put a token of this text or of another one in place of a token."""
    tokens = list(TOKEN.finditer(text))
    if not tokens:
        return text
    at, source = rng.choice(tokens), TOKEN.findall(rng.choice((text, text, other)))
    new = rng.choice(source or [""])
    return text[: at.start()] + new + text[at.end() :]


def _drop_token(text: str, other: str, rng: random.Random) -> str:
    tokens = list(TOKEN.finditer(text))
    at = rng.choice(tokens) if tokens else None
    return text if at is None else text[: at.start()] + text[at.end() :]


def _change_number(text: str, other: str, rng: random.Random) -> str:
    numbers = list(re.finditer(r"(?<![\w%])-?\d+", text))
    if not numbers:
        return text
    at = rng.choice(numbers)
    return text[: at.start()] + rng.choice(NUMBERS) + text[at.end() :]


def _swap_values(text: str, other: str, rng: random.Random) -> str:
    """Use another value somewhere."""
    values = list(re.finditer(r"%[\w]+", text))
    if not values:
        return text
    at, new = rng.choice(values), rng.choice(values)
    return text[: at.start()] + new[0] + text[at.end() :]


def _lines(text: str, other: str, rng: random.Random) -> str:
    """Drop, repeat, move or insert a line."""
    lines = text.split("\n")
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(to, lines[at])
        case 2:
            lines.insert(to, lines.pop(at))
        case _:
            lines.insert(to, rng.choice(other.split("\n")))
    return "\n".join(lines)


def _characters(text: str, other: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    new = rng.choice(("", *'"{}<>()%!#^-', "\x00", "\\", "é", "\u2028", "\t"))
    return text[:at] + new + text[at + rng.randrange(3) :]


def _cut(text: str, other: str, rng: random.Random) -> str:
    """Cut the text off, or go on with another one."""
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(("", other[rng.randrange(len(other) + 1) :]))


MUTATIONS = (
    *(_replace_token, _replace_token, _change_number, _swap_values, _swap_values),
    *(_lines, _lines, _drop_token, _characters, _cut),
)

GENTLE = (_swap_values, _swap_values, _change_number, _operation)

# ---- trying ----


def try_module(text: str, rng: random.Random, context: Context) -> tuple[str, str | None]:
    """How far a text came, and a description of what must not have happened."""
    passes: list[str] = []
    try:
        with time_limit(LIMIT_SECONDS):
            try:
                module = parse_source(text, "fuzz.mlir").module
            except IRError as error:
                return ("placed" if error.line is not None else "refused"), None
            known = known_passes()
            count = rng.choice((1, 2, 4))
            passes = rng.sample([name for name in known if name not in SLOW or rng.random() < 0.05], count)
            if rng.random() < 0.5:
                passes = ["mask-to-interval", "interval-normalize", *passes]
            with observing(ReadBack(context)):
                apply(module, [known[name]()() for name in passes], context)
            return "lowered", None
    except CompileMaskError as error:
        if "cannot be read again" in str(error) or ", read again, is another" in str(error):
            return "finding", _describe(text, passes)
        return "passes refused", None
    except (Exception, TooSlow):
        return "finding", _describe(text, passes)


def _describe(text: str, passes: Sequence[str]) -> str:
    trace = "".join(traceback.format_exc().splitlines(keepends=True)[-14:])
    return f"passes: {','.join(passes) or 'none'}\n{trace}\n{text}\n"


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TooSlow in the main thread after so many seconds of processor time: other processes do not count."""

    def late(*_: object) -> None:
        raise TooSlow(f"more than {seconds} s")

    previous = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def try_triton(text: str) -> tuple[str, str | None]:
    """Compile Triton IR in a child process: whatever Triton does there, this process gets an error of ours at most."""
    from compilemask.runtime.gpu.compile_kernel import compile_in_child

    try:
        compile_in_child(text, "cuda:90")
    except CompileMaskError:
        return "Triton refused", None
    except Exception:
        return "finding", _describe(text, ["triton"])
    return "Triton compiled", None


def triton_corpus() -> list[str]:
    """Triton IR of small kernels."""
    import compilemask as cm

    return [text for text in cm.compile(cm.causal()).program.kernels.values() if len(text) <= 4 * LONGEST]


def fuzz(seed: int, modules: int | None = None, seconds: float | None = None, triton_every: int = 0) -> Report:
    """Try so many modules, or for so long. One text in `triton_every` is Triton IR, compiled in a child process."""
    report, texts, context = Report(), corpus(), make_context()
    kernels = triton_corpus() if triton_every else []
    end = time.monotonic() + seconds if seconds is not None else float("inf")
    number = 0
    while (modules is None or number < modules) and time.monotonic() < end:
        rng = random.Random(f"{seed}/{number}")
        if kernels and number % triton_every == triton_every - 1:
            outcome, finding = try_triton(mutate(rng.choice(kernels), kernels, rng))
        else:
            outcome, finding = try_module(mutate(rng.choice(texts), texts, rng), rng, context)
        report.outcomes[outcome] += 1
        if finding is not None:
            report.findings.append(f"---- module {number} of seed {seed}\n{finding}")
            print(report.findings[-1], flush=True)
        number += 1
    return report


def main() -> int:
    """The command: 1 if there were findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--modules", type=int)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--triton-every", type=int, default=2000)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    report = fuzz(seed, options.modules, None if options.modules else options.seconds, options.triton_every)
    print(f"{report.total} modules: {dict(report.outcomes)}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
