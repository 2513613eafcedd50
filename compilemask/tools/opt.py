"""`compilemask-opt`: reads IR of any level, runs passes on it and prints it, by xDSL's driver."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.xdsl_opt_main import xDSLOptMain

from compilemask.dialects.registry import known_dialects
from compilemask.errors import CompileMaskError, IRError
from compilemask.language.source import parse_source
from compilemask.lowering.registry import known_passes, parse_pipeline
from compilemask.passes.instrument import run_passes
from compilemask.tools.lower import add_debug, watched
from compilemask.tools.reproducer import pipeline_of, reproducer
from compilemask.tools.streams import has_output


class Driver(xDSLOptMain):
    """The driver: one run per object."""

    version_format = "compilemask-opt, built on xDSL {xdsl_version}"

    def __init__(self, args: Sequence[str] | None = None) -> None:
        super().__init__("Runs passes on the IR of CompileMask", args)

    def register_all_dialects(self) -> None:
        for name, get in known_dialects().items():
            self.ctx.register_dialect(name, get)

    def parse_chunk(self, chunk: IO[bytes], file_extension: str, start_offset: int = 0) -> ModuleOp | None:
        """As xDSL's, but faults say where they are; the options that want xDSL's own reports get them."""
        options = self.args
        own = options.verify_diagnostics or options.parsing_diagnostics or options.disable_verify
        if own or options.allow_unregistered_dialect or (options.frontend or file_extension) != "mlir":
            return super().parse_chunk(chunk, file_extension, start_offset)
        # Pieces of a split file keep the line numbers of the whole.
        text = "\n" * start_offset + chunk.read().decode()
        if options.run_reproducer:
            self.passes = parse_pipeline(pipeline_of(text, self.get_input_name()))
        return parse_source(text, self.get_input_name()).module

    def register_all_passes(self) -> None:
        self.available_passes.update(known_passes())

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        super().register_all_arguments(arg_parser)
        arg_parser.add_argument(
            "--run-reproducer", action="store_true", help="run the passes that the input names in its first line"
        )
        add_debug(arg_parser)

    def setup_pipeline(self) -> None:
        """The passes; those of a reproducer are known once it is read."""
        self.passes = parse_pipeline(self.args.passes)

    def apply_passes(self, prog: ModuleOp) -> None:
        options = self.args
        options.timing |= options.time_passes
        options.print_ir_after_all |= options.print_between_passes
        if not options.disable_verify:
            prog.verify()
        if options.reproducer:
            Path(options.reproducer).write_text(reproducer(prog, self.passes))
        with watched(options):
            run_passes(prog, self.passes, self.ctx, verify=not options.disable_verify)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command: faults in the input go to stderr in a few lines."""
    if not has_output():
        sys.exit(1)
    try:
        Driver(arguments).run()
    except BrokenPipeError:  # the reader of our output has gone; so has the need for it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
    except IRError as error:
        print("\n".join(filter(None, (f"compilemask-opt: {error}", error.excerpt))), file=sys.stderr)
        sys.exit(1)
    except UnicodeDecodeError:
        print("compilemask-opt: the input is not UTF-8 text", file=sys.stderr)
        sys.exit(1)
    except (ParseError, DiagnosticException, CompileMaskError, OSError, ValueError) as error:
        print(f"compilemask-opt: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
