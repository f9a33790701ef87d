"""A program that computes the memory of one model, as `octavo fit` does, and ends.

It is a process of its own: a model's files may be damaged, and the server imports no backend.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from msgspec import Struct, json

from octavo.core.config import ConfigError
from octavo.env import child_environment, child_module_path
from octavo.loader.errors import CheckpointError
from octavo.options.engine import EngineArguments
from octavo.server.models.memory import Need, Room
from octavo.wire.message_types import pack, unpack

if TYPE_CHECKING:
    from octavo.resolve import EngineConfig

PROGRAM = "octavo.server.models.need"
_ANY_BYTES = 1 << 60  # more than a model needs
SECONDS = 300.0  # to read the headers of a model's files
_FAILED = 3  # with a reason on standard output


class NeedError(ValueError):
    """A model that does not fit, or whose files cannot be read; the message is for operators."""


class Problem(Struct, frozen=True):
    """The reason why there is no answer."""

    problem: str


def launch(room: Room) -> subprocess.Popen[bytes]:
    """Start the program, which waits for the arguments of an engine."""
    words = ["--bytes", str(room.num_bytes), "--parts", str(room.most)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", PROGRAM, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment({"PYTHONPATH": child_module_path()}),
    )


def answer_of(process: subprocess.Popen[bytes], arguments: EngineArguments) -> Need:
    """Return the memory of a model, which the program computes; raise NeedError."""
    try:
        written, _ = process.communicate(pack(arguments), SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise NeedError(f"its memory was not computed within {SECONDS:g} s") from None
    if process.returncode == _FAILED:
        raise NeedError(json.decode(written, type=Problem).problem)
    if process.returncode != os.EX_OK:
        status = process.returncode
        raise NeedError(f"its memory could not be computed: the program ended with {status}")
    return json.decode(written, type=Need)


def computed(arguments: EngineArguments, room: Room) -> Need:
    """Return the memory of a model in the fewest equal parts of the room in which it fits.

    So several models have room together, and one that is larger than a part may have more.
    """
    from octavo.engine.drafting.drafter import layout_of, open_with_drafter
    from octavo.observe.memory_bill import HEADROOM_BYTES
    from octavo.resolve import follow_quantization, resolve

    _, opened = open_with_drafter(arguments)
    asked, layout = follow_quantization(arguments, opened), layout_of(opened)
    engines = asked.data_parallel_size
    for count in range(1, room.most + 1):
        part = room.num_bytes * count // room.most
        try:
            config = resolve(asked, opened, layout, part + HEADROOM_BYTES)  # of all
        except ConfigError:  # perhaps it fits in more parts
            continue
        needed = engines * config.bill.with_blocks(config.core.num_blocks)
        if needed <= part:
            return Need(needed, config.core.num_blocks, config.core.max_model_len)
    config = resolve(asked, opened, layout, _ANY_BYTES)  # raises what is not for want of memory
    raise _too_large(asked, config, room)


def _too_large(asked: EngineArguments, config: EngineConfig, room: Room) -> ConfigError:
    """Return the error for a model that has no room, even alone."""
    from octavo.resolve import beside_text
    from octavo.runner.kv_cache import readable

    bill, engines = config.bill, asked.data_parallel_size
    is_given = (asked.kv_cache_memory_bytes, asked.num_gpu_blocks_override) != (None, None)
    blocks = config.core.num_blocks if is_given else len(bill.groups) + 1
    what = "the KV cache" if is_given else "the smallest KV cache"
    advice = "lower kv_cache_memory_bytes or num_gpu_blocks_override, " if is_given else ""
    each = "" if engines == 1 else f"for each of {engines} engines "
    return ConfigError(
        f"{readable(engines * bill.with_blocks(blocks))} are needed ({each}the weights "
        f"{readable(bill.all_weights_bytes)}, a step {readable(bill.step_bytes)}, "
        f"{beside_text(bill)}, {what} {readable(blocks * bill.block_bytes)}), and all models "
        f"together have {readable(room.num_bytes)}; {advice}free memory or raise models_memory, or "
        "take a smaller model"
    )


def main() -> int:
    """Read the arguments of an engine from standard input, and write its need or the problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--parts", type=int, required=True)
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # the engine says the same when it is loaded
    arguments = unpack(sys.stdin.buffer.read(), EngineArguments)
    try:
        answer: Need | Problem = computed(arguments, Room(given.bytes, given.parts))
    except (ConfigError, CheckpointError, OSError) as error:
        answer = Problem(str(error))
    sys.stdout.buffer.write(json.encode(answer))
    return os.EX_OK if isinstance(answer, Need) else _FAILED


if __name__ == "__main__":
    sys.exit(main())
