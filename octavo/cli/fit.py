"""The `fit` command: the memory a model needs, computed from the headers of its files.

No weight is read. The KV table lists how many sequences of which length fit at once.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from octavo.cli.engine_options import add_engine_options, add_model, engine_arguments
from octavo.cli.output import size, table
from octavo.cli.parsing import Parser
from octavo.options.processes.experts import num_redundant
from octavo.options.processes.machines import processes_of_machine
from octavo.options.values import byte_count

if TYPE_CHECKING:
    from octavo.models.load import OpenedModel
    from octavo.observe.memory_bill import MemoryBill
    from octavo.options.engine import EngineArguments
    from octavo.resolve import EngineConfig

_LENGTHS = (512, 2048, 8192, 32_768, 131_072, 1_048_576)


def add_arguments(parser: Parser) -> None:
    """Add the model, the memory, and the engine's flags, which change the result."""
    add_model(parser, has_default=False)
    parser.add_argument(
        "--memory",
        type=byte_count,
        metavar="SIZE",
        help="memory to fit into, as in 16GiB (default: what is free on this machine)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the memory bill; return 1 if the model does not fit."""
    from octavo.core.config import ConfigError
    from octavo.engine.drafting.drafter import layout_of, open_with_drafter
    from octavo.resolve import follow_quantization, make_bill, resolve
    from octavo.usable import choose_backend

    asked = engine_arguments(arguments)
    if asked.data_parallel_backend != "mp":  # each engine has a machine of its own
        asked = replace(asked, data_parallel_size=1)
    _, opened = open_with_drafter(asked)
    asked = follow_quantization(asked, opened)
    layout = layout_of(opened)
    free = arguments.memory
    if free is None:
        free = choose_backend(asked).kind.memory().available
    bill = make_bill(asked, opened, layout)
    config, problem = None, ""
    try:
        config = resolve(asked, opened, layout, free)
    except ConfigError as error:
        from octavo.cli.trouble import as_flags

        problem = as_flags(str(error))
    else:
        problem = _shortage(asked, bill, config, free)
    if arguments.json:
        import json

        report = _as_json(asked, bill, config, free, problem)
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        sys.stdout.write(_as_text(asked, opened, bill, config, free, problem))
    return 1 if problem else 0


def _shortage(asked: EngineArguments, bill: MemoryBill, config: EngineConfig, free: int) -> str:
    """Return the message for a requested KV cache that is too large; "" if there is room."""
    needed = asked.data_parallel_size * bill.with_blocks(config.core.num_blocks)
    if needed <= free:
        return ""
    is_in_blocks = asked.num_gpu_blocks_override is not None
    flag = "--num-gpu-blocks-override" if is_in_blocks else "--kv-cache-memory-bytes"
    return (
        f"{size(needed)} are needed and {size(free)} are free, which is {size(needed - free)} "
        f"too few; lower {flag}, or leave it out to use what is free"
    )


def _as_text(
    asked: EngineArguments,
    opened: OpenedModel,
    bill: MemoryBill,
    config: EngineConfig | None,
    free: int,
    problem: str,
) -> str:
    spec, longest = opened.spec, f"{opened.spec.max_len:,}"
    in_files = table(
        [
            (each.type, f"{each.num_tensors:,} tensors", size(each.num_bytes))
            for each in bill.stored
        ],
        indent="  ",
        right=(1, 2),
    )
    parts = [
        f"{asked.model}: {opened.architecture}, {spec.layers} layers, up to {longest} tokens\n",
        *(
            ("\nIn the files\n", in_files)
            if bill.stored
            else ("\nWithout files: weights are made\n",)
        ),
        "\nIn memory\n",
        table(_memory_rows(asked, bill, config, free), indent="  ", right=(1,)),
    ]
    if config is not None:
        where = "" if asked.data_parallel_size == 1 else " in each engine"
        parts += [f"\nSequences at once{where}\n", table(_length_rows(bill, config), indent="  ")]
    if config is None or problem:
        parts.append(f"\nIt does not fit: {problem}\n")
    else:
        needed = asked.data_parallel_size * bill.with_blocks(config.core.num_blocks)
        to_spare = free - needed
        parts.append(f"\nIt fits, with {size(to_spare)} to spare.\n")
    return "".join(parts)


def _memory_rows(
    asked: EngineArguments, bill: MemoryBill, config: EngineConfig | None, free: int
) -> list[tuple[str, ...]]:
    block = f"{size(bill.block_bytes)} a block of {bill.block_size} tokens"
    rows = [
        ("weights", size(bill.weights_bytes), "in the backend's formats"),
        *([("draft model", size(bill.drafter_bytes), "its weights")] if bill.drafter_bytes else []),
        (
            "a step",
            size(bill.step_bytes),
            f"about; for the largest step, {bill.chunk_tokens:,} tokens",
        ),
    ]
    stages = asked.pipeline_parallel_size // asked.nnodes  # of this machine, if nodes divide these
    further = processes_of_machine(asked) - 1
    if further and not bill.rank_bytes:
        each = "each with a device of its own: what is here is of one of these"
        rows.append(("ranks", "", f"{further + 1}, {each}"))
    elif further:
        name, what = ("ranks", "its part of the weights")
        if stages > 1:
            name, what = ("stages", "the weights of its layers")
        others = f"of {further} more; each has {what}"
        if copies := num_redundant(asked):
            others += f"; {copies} experts of each layer are in two"
        rows.append((name, size(bill.rank_bytes), others))
    if bill.grammar_bytes:
        rows.append(("grammars", size(bill.grammar_bytes), "at most, of all texts with a shape"))
    if bill.adapter_bytes:
        rows.append(("adapters", size(bill.adapter_bytes), "at most, of all in memory"))
    if config is not None:
        num_blocks = config.core.num_blocks
        blocks = f"{num_blocks:,} blocks; {block}, {size(int(bill.token_bytes))} a token"
        rows.append(("KV cache", size(num_blocks * bill.block_bytes), blocks))
        total, num_engines = bill.with_blocks(num_blocks), asked.data_parallel_size
        rows.append(("total", size(total), ""))
        if num_engines > 1:
            rows.append((f"{num_engines} engines", size(num_engines * total), "each as above"))
    else:
        rows.append(("KV", size(int(bill.token_bytes)), f"a token; {block}"))
    return [*rows, ("free", size(free), "")]


def _length_rows(bill: MemoryBill, config: EngineConfig) -> list[tuple[str, ...]]:
    """Return how many sequences fit, for some usual lengths up to the longest possible."""
    core = config.core
    kv_bytes = core.num_blocks * bill.block_bytes
    rows: list[tuple[str, ...]] = []
    lengths = [length for length in _LENGTHS if length < core.max_model_len]
    for length in (*lengths, core.max_model_len):
        fitting = bill.num_sequences(length, kv_bytes)
        count = min(fitting, core.max_num_seqs)
        why = " (--max-num-seqs)" if fitting >= core.max_num_seqs else ""
        rows.append((f"{count:,} of {length:,} tokens{why}",))
    return rows


def _as_json(
    asked: EngineArguments, bill: MemoryBill, config: EngineConfig | None, free: int, problem: str
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "model": asked.model,
        "stored": {each.type: each.num_bytes for each in bill.stored},
        "weights": bill.weights_bytes,
        **({"draft_model": bill.drafter_bytes} if bill.drafter_bytes else {}),
        **({"ranks": bill.rank_bytes} if bill.rank_bytes else {}),
        "step": bill.step_bytes,
        "grammars": bill.grammar_bytes,
        **({"adapters": bill.adapter_bytes} if bill.adapter_bytes else {}),
        "kv_block": bill.block_bytes,
        "block_size": bill.block_size,
        "kv_token": bill.token_bytes,
        **({"engines": asked.data_parallel_size} if asked.data_parallel_size > 1 else {}),
        "free": free,
        "fits": not problem,
    }
    if problem:
        report["problem"] = problem
    if config is None:
        return report
    kv_bytes = config.core.num_blocks * bill.block_bytes
    longest = config.core.max_model_len
    return {
        **report,
        "kv_cache": kv_bytes,
        "max_model_len": longest,
        "sequences_of_max_model_len": bill.num_sequences(longest, kv_bytes),
    }
