"""`python -m analysis COMMAND`: everything that the pages do, without a browser, through the same functions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
from transformers.utils import logging

from analysis import cli_coalitions, cli_evaluate, cli_game, cli_interaction

COMMANDS = (cli_interaction, cli_coalitions, cli_game, cli_evaluate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did its work, 2 with one `error:` line when the input was at fault."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_commands(commands)
    options = parser.parse_args(arguments)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        options.func(options)
    except (torch.OutOfMemoryError, MemoryError) as error:
        print(f"error: out of memory ({error}). Use a smaller --batch-size, --seq-len or --dtype bfloat16.", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
