"""The options about what is sent, the same of a server's measurement and of an engine's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.parsing import Parser, UsageError

if TYPE_CHECKING:
    from octavo.bench.load.source import Data

# As in bench/load/source.py, whose import takes longer than the help should.
_RANDOM, _PREFIXES, _SHAREGPT, _CUSTOM = "random", "prefix_repetition", "sharegpt", "custom"
_MOONCAKE, _BURSTGPT, _TIMED = "mooncake", "burstgpt", "timed_trace"
DATASETS = (_RANDOM, _PREFIXES, _SHAREGPT, _MOONCAKE, _BURSTGPT, _TIMED, _CUSTOM)
_NEED_FILE, _HAVE_NO_FILE = (_TIMED, _CUSTOM), (_RANDOM, _PREFIXES)
_OWN_LENGTHS = (_MOONCAKE, _BURSTGPT, _TIMED)
_MOST = 1_000_000
_LEAST = {
    "num_prompts": 1,
    "input_len": 1,
    "output_len": 1,
    "random_input_len": 1,
    "random_output_len": 1,
    "random_prefix_len": 0,
    "prefix_repetition_prefix_len": 0,
    "prefix_repetition_suffix_len": 1,
    "prefix_repetition_num_prefixes": 1,
    "prefix_repetition_output_len": 1,
    "sharegpt_output_len": 1,
    "custom_output_len": 1,
    "timed_trace_chunk_hash_size": 1,
}


def add_data_options(parser: Parser) -> None:
    """Add the data, its file, and its lengths; names and defaults are vLLM's."""
    group = parser.add_argument_group("the requests")
    group.add_argument("--num-prompts", type=int, default=1000, metavar="COUNT", help="(1000)")
    group.add_argument(
        "--dataset-name",
        choices=DATASETS,
        default=_RANDOM,
        help="random: words by chance; prefix_repetition: many begin alike; sharegpt, mooncake and "
        "burstgpt: by chance, shaped like these, or read from a file of their form; timed_trace: a "
        "trace of Mooncake's form; custom: a file with an object with `prompt` or `messages` on "
        "each line (random)",
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="to read the data from")
    group.add_argument(
        "--input-len", type=int, metavar="TOKENS", help="the same as --random-input-len"
    )
    group.add_argument("--output-len", type=int, metavar="TOKENS", help="of answers, for any data")
    group.add_argument(
        "--length-scale",
        type=float,
        default=1.0,
        metavar="RATIO",
        help="of the lengths of prompts and answers that the data has, as 0.1 for a model with a "
        "short context (1)",
    )
    _add_random(parser)
    _add_traces(parser)


def _add_random(parser: Parser) -> None:
    group = parser.add_argument_group("random requests")
    group.add_argument(
        "--random-input-len", type=int, default=1024, metavar="TOKENS", help="(1024)"
    )
    group.add_argument("--random-output-len", type=int, default=128, metavar="TOKENS", help="(128)")
    group.add_argument(
        "--random-prefix-len",
        type=int,
        default=0,
        metavar="TOKENS",
        help="that all prompts begin with, beside their own (0)",
    )
    group.add_argument(
        "--random-range-ratio",
        type=float,
        default=0.0,
        metavar="RATIO",
        help="lengths are drawn between 1 - RATIO and 1 + RATIO of these (0)",
    )
    group.add_argument(
        "--prefix-repetition-prefix-len", type=int, default=256, metavar="TOKENS", help="(256)"
    )
    group.add_argument(
        "--prefix-repetition-suffix-len", type=int, default=256, metavar="TOKENS", help="(256)"
    )
    group.add_argument(
        "--prefix-repetition-num-prefixes", type=int, default=10, metavar="COUNT", help="(10)"
    )
    group.add_argument(
        "--prefix-repetition-output-len", type=int, default=128, metavar="TOKENS", help="(128)"
    )


def _add_traces(parser: Parser) -> None:
    group = parser.add_argument_group("conversations and traces")
    group.add_argument(
        "--sharegpt-output-len", type=int, metavar="TOKENS", help="(as the recorded answers)"
    )
    group.add_argument("--custom-output-len", type=int, default=256, metavar="TOKENS", help="(256)")
    group.add_argument(
        "--disable-shuffle", action="store_true", help="keep the order of a file's prompts"
    )
    group.add_argument(
        "--no-oversample",
        action="store_true",
        help="send a file's prompts once, even if --num-prompts are more",
    )
    group.add_argument(
        "--burstgpt-model",
        default="GPT-4",
        metavar="NAME",
        help="whose requests are taken from BurstGPT's file; all: everyone's (GPT-4)",
    )
    group.add_argument(
        "--timed-trace-chunk-hash-size",
        type=int,
        metavar="TOKENS",
        help="of a block of a trace's hash_ids (512 of mooncake, 16 of timed_trace)",
    )
    group.add_argument(
        "--timed-trace-sec-multiplier",
        type=float,
        metavar="SECONDS",
        help="of a unit of a trace's timestamps (0.001 of mooncake, 1 of timed_trace)",
    )


def check_data(arguments: argparse.Namespace) -> None:
    """Refuse values that cannot be, and files and lengths that the data has no use for."""
    check_least(arguments, _LEAST)
    name = arguments.dataset_name
    if not 0 <= arguments.random_range_ratio < 1:
        raise UsageError("--random-range-ratio must be at least 0 and less than 1")
    if not 0 < arguments.length_scale <= 1000:
        raise UsageError("--length-scale must be more than 0 and at most 1000")
    unit = arguments.timed_trace_sec_multiplier
    if unit is not None and not 0 < unit <= 1e6:
        raise UsageError("--timed-trace-sec-multiplier must be more than 0 and at most 1,000,000")
    if name in _NEED_FILE and arguments.dataset_path is None:
        raise UsageError(f"--dataset-name {name} needs --dataset-path FILE")
    if arguments.dataset_path is not None and name in _HAVE_NO_FILE:
        raise UsageError(
            f"--dataset-path is for data of a file, and {name} has none; name the file's form with "
            f"--dataset-name: {', '.join(DATASETS[len(_HAVE_NO_FILE) :])}"
        )
    if arguments.input_len is not None and name != _RANDOM:
        raise UsageError(f"--input-len is for --dataset-name random; {name} has its own lengths")
    if arguments.output_len is not None and name in _OWN_LENGTHS:
        raise UsageError(f"--output-len is not for {name}, which has lengths of its own")


def check_least(arguments: argparse.Namespace, least: dict[str, int]) -> None:
    """Refuse whole numbers below the least that makes sense, or far above any."""
    for name, smallest in least.items():
        value = getattr(arguments, name)
        if value is not None and not smallest <= value <= _MOST:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {value} must be between {smallest} and {_MOST:,}")


def data_of(arguments: argparse.Namespace) -> Data:
    """Return the data that the options describe."""
    from octavo.bench.load.shapes import Lengths
    from octavo.bench.load.source import Data

    name, answer = arguments.dataset_name, arguments.output_len
    lengths = Lengths(
        arguments.input_len or arguments.random_input_len,
        answer or arguments.random_output_len,
        arguments.random_prefix_len,
        arguments.random_range_ratio,
    )
    if name == _PREFIXES:
        lengths = Lengths(
            arguments.prefix_repetition_suffix_len,
            answer or arguments.prefix_repetition_output_len,
            arguments.prefix_repetition_prefix_len,
        )
    most = {_CUSTOM: arguments.custom_output_len, _SHAREGPT: arguments.sharegpt_output_len}
    return Data(
        name=name,
        count=arguments.num_prompts,
        path=arguments.dataset_path,
        lengths=lengths,
        num_prefixes=arguments.prefix_repetition_num_prefixes,
        max_tokens=(answer or most[name]) if name in most else None,
        block=arguments.timed_trace_chunk_hash_size,
        unit=arguments.timed_trace_sec_multiplier,
        burstgpt_model=arguments.burstgpt_model,
        length_scale=arguments.length_scale,
        is_shuffled=not arguments.disable_shuffle,
        is_repeated=not arguments.no_oversample,
    )
