"""`compilemask explain`: the form that the compiler found for a mask, why no better one, and what it costs."""

from __future__ import annotations

import argparse
import json

from compilemask.tools.arguments import add_mask, length, mask_of


def add_explain(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_mask(parser)
    parser.add_argument("--keys", type=length, metavar="M", help="number of keys (default: as many as queries)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from compilemask.runtime.explanation import explain

    found = explain(mask_of(options), options.seq, options.keys)
    print(json.dumps(found.to_dict(), indent=2) if options.json else found)
    return 0


__all__ = ["add_explain"]
