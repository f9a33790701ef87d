"""SGLang's number of ranks among which experts are divided, as `--enable-expert-parallel`."""

from __future__ import annotations

import argparse

from octavo.cli.parsing import Parser, UsageError

_FLAGS = ("--ep-size", "--ep", "--expert-parallel-size")


def add_expert_ranks(parser: Parser) -> None:
    """Add the flag, hidden."""
    parser.add_argument(*_FLAGS, dest="ep_size", type=int, default=None, help=argparse.SUPPRESS)


def follow_expert_ranks(arguments: argparse.Namespace) -> None:
    """Give ranks whole experts if their number is that of all ranks; refuse other numbers."""
    size = vars(arguments).pop("ep_size", None)
    if size in (None, 1):
        return
    ranks = getattr(arguments, "tensor_parallel_size", None) or 1
    if size != ranks:
        raise UsageError(
            f"--ep-size {size} with --tensor-parallel-size {ranks} is not supported: experts are "
            "divided among all ranks of an engine; give both the same number"
        )
    arguments.enable_expert_parallel = True
