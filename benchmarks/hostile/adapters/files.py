"""Damaged files of adapters, which a real engine loads one after the other beside watched streams.

Each is loaded as clients load them, by the route that copies its files and lets the engine check
them. It must be refused in one line, or be used by a request. The streams must not change, and no
pause be 100 ms longer than those of the undisturbed server; engine and loader live on.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray

from benchmarks.hostile.adapters.routes import LOAD, UNLOAD
from benchmarks.hostile.attack import COMPLETIONS, Attack, Right, post
from benchmarks.hostile.client import carry_out
from benchmarks.hostile.run import (
    MAX_GAP_MS,
    SETTINGS,
    Options,
    Watcher,
    log_faults,
    warm_up,
)
from benchmarks.served.adapters import GGUF_NAMES, AdapterMaker, spec_of
from benchmarks.served.client import LostError, Served
from octavo.adapter_copies.errors import MISSING, NOT_AN_ADAPTER, UNREADABLE
from octavo.layers import ModelSpec
from octavo.wire.commands import FILE_FAULTS
from tests.adapters.made import SETTINGS as PEFT_SETTINGS
from tests.api.tiny import SIZES, make_model
from tests.damage.mutants import Mutant, byte_mutants, json_mutants
from tests.damage.weights import gguf_mutants, safetensors_mutants
from tests.loader.make_files import F32, STRING, f32_tensor, gguf_bytes

OVERFLOW = "engine_error"  # of a request whose numbers are not finite any more
CODES = (*FILE_FAULTS, MISSING, NOT_AN_ADAPTER, UNREADABLE)
SETTINGS_NAME, TENSORS_NAME, GGUF_NAME = (
    *("adapter_config.json", "adapter_model.safetensors"),
    "adapter.gguf",
)
RANK, NUM_LAYERS = 4, 2
_EMBED = "base_model.model.model.embed_tokens.lora_embedding"
NUM_CLIENTS = 4
MAX_LINE = 2000  # characters
LONGER = {"max_position_embeddings": 2048}  # the watched streams have more tokens than a test
KEPT_FAULTS = 10


@dataclass
class Tally:
    """Counts of the outcomes, and the faults."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, mutant: Mutant, outcome: str, fault: str | None) -> None:
        """Count the outcome of one file."""
        self.outcomes[outcome] += 1
        if fault is not None and len(self.faults) < KEPT_FAULTS:
            self.faults.append(f"adapter with {mutant.file}: {mutant.name}: {fault}")


def undamaged(model: str, directory: Path) -> list[Mutant]:
    """Write an adapter in both forms, each in a directory; return all mutants of them."""
    spec = spec_of(model)
    maker = AdapterMaker(spec, RANK, "float32", NUM_LAYERS)
    peft = maker.write(directory / "peft", 0)
    outside = _outside_the_blocks(spec)
    _add_to(peft / TENSORS_NAME, outside)
    settings = {**PEFT_SETTINGS, "r": RANK, "base_model_name_or_path": "base"}
    settings |= {"modules_to_save": ["lm_head"]}
    (peft / SETTINGS_NAME).write_text(json.dumps(settings))
    tensors = [
        f32_tensor(f"blk.{layer}.{GGUF_NAMES[name]}.weight.lora_{half.lower()}", array)
        for layer, name, half, array in maker.tensors(0)
    ]
    table = np.ascontiguousarray(outside[f"{_EMBED}_A"].T)
    tensors.append(f32_tensor("token_embd.weight.lora_a", table))
    tensors.append(f32_tensor("token_embd.weight.lora_b", outside[f"{_EMBED}_B"]))
    pairs: list[tuple[str, int, Any]] = [
        ("general.architecture", STRING, "llama"),
        ("general.type", STRING, "adapter"),
        ("adapter.type", STRING, "lora"),
        ("adapter.lora.alpha", F32, 8.0),
    ]
    gguf = directory / "gguf"
    gguf.mkdir()
    (gguf / GGUF_NAME).write_bytes(gguf_bytes(pairs, tensors))
    mutants = [*json_mutants(SETTINGS_NAME, (peft / SETTINGS_NAME).read_bytes())]
    for file, of_file in (
        (SETTINGS_NAME, byte_mutants),
        (TENSORS_NAME, byte_mutants),
        (TENSORS_NAME, safetensors_mutants),
    ):
        mutants += of_file(file, (peft / file).read_bytes())
    mutants += byte_mutants(GGUF_NAME, (gguf / GGUF_NAME).read_bytes())
    return [*mutants, *gguf_mutants(GGUF_NAME, pairs, tensors)]


def _outside_the_blocks(spec: ModelSpec) -> dict[str, NDArray[np.float32]]:
    """Return a pair of the embedding, and a head in place of the model's."""
    random = np.random.default_rng(RANK)
    shapes = {
        f"{_EMBED}_A": (RANK, spec.vocabulary),
        f"{_EMBED}_B": (spec.hidden, RANK),
        "base_model.model.lm_head.weight": (spec.vocabulary, spec.hidden),
    }
    small = np.float32(0.02)
    return {name: random.standard_normal(size, np.float32) * small for name, size in shapes.items()}


def _add_to(path: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    from safetensors.numpy import load_file, save_file

    save_file({**load_file(path), **tensors}, path, metadata={"format": "pt"})


def damages(mutants: Sequence[Mutant], count: int, seed: int) -> Iterator[Mutant]:
    """Yield so many mutants: each once, and then some with bytes that are changed besides."""
    chance = random.Random(seed)
    shuffled = list(mutants)
    chance.shuffle(shuffled)
    yield from shuffled[:count]
    for number in range(len(shuffled), count):
        yield _scattered(chance.choice(shuffled), number)


def _scattered(mutant: Mutant, seed: int) -> Mutant:
    """Change a few bytes of what a mutant makes, mostly near the beginning."""

    def change(content: bytes) -> bytes | None:
        chance = random.Random(seed)
        changed = bytearray(mutant.change(content) or content)
        for _ in range(chance.randrange(1, 4) if changed else 0):
            changed[int(len(changed) * chance.random() ** 3)] = chance.randrange(256)
        return bytes(changed)

    return Mutant(f"{mutant.name}, and bytes of {seed}", mutant.file, change)


async def try_all(served: Served, whole: Path, mutants: Iterator[Mutant], tally: Tally) -> None:
    """Let several clients load the damaged adapters."""

    async def client(number: int) -> None:
        place, name = whole / f"client-{number}", f"damaged-{number}"
        for mutant in mutants:
            form = "gguf" if mutant.file == GGUF_NAME else "peft"
            await asyncio.to_thread(_damage, whole / form, place, mutant)
            tally.add(mutant, *await _try_one(served.port, name, place))
            await asyncio.to_thread(shutil.rmtree, place)

    await asyncio.gather(*(client(number) for number in range(NUM_CLIENTS)))


def _damage(source: Path, place: Path, mutant: Mutant) -> None:
    shutil.copytree(source, place)
    mutant.apply(place)


async def _try_one(port: int, name: str, place: Path) -> tuple[str, str | None]:
    """Load an adapter, and use it if it loads; return the outcome and what is wrong with it."""
    status, body = await _ask(port, LOAD, {"lora_name": name, "lora_path": str(place)})
    if status != 200:
        return refused(status, body)
    more = {"prompt": [3, 4, 5], "max_tokens": 2, "ignore_eos": True}
    used, body = await _ask(port, COMPLETIONS, {"model": name, **more})
    gone, _ = await _ask(port, UNLOAD, {"lora_name": name})
    if used == 500 and json.loads(body)["error"]["code"] == OVERFLOW:
        return "loaded, overflows", None if gone == 200 else f"it is not unloaded: {gone}"
    wrong = None if (used, gone) == (200, 200) else f"it is loaded, then {used}, {gone}: {body!r}"
    return "loaded", wrong


def refused(status: int, body: bytes) -> tuple[str, str | None]:
    """Judge whether a refusal is one clear line with a code of its own."""
    if status != 400:
        return str(status), f"status {status}: {body[:300]!r}"
    error = json.loads(body)["error"]
    code, line = error["code"], error["message"]
    if code not in CODES:
        return str(code), f"the code is {code!r}: {line!r}"
    if not line.isprintable() or not 10 <= len(line) <= MAX_LINE:
        return code, f"the message is no clear line: {line[:300]!r}"
    return code, None


async def _ask(port: int, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    outcome = await carry_out(Attack((post(path, body),), Right.SERVED), port)
    if len(outcome.answers) != 1 or outcome.malformed:
        raise LostError(f"no response to {path}: {outcome}")
    return outcome.answers[0].status, bytes(outcome.answers[0].body)


def loaders(served: Served) -> list[int]:
    """Return the processes that load files for the engine."""
    return [number for number in served.children() if b"loader_process" in _command(number)]


def _command(number: int) -> bytes:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""  # it has just ended


async def measure_files(
    served: Served, count: int, model: str, options: Options, log: Path
) -> dict[str, Any]:
    """Load so many damaged adapters beside watched streams; return the report."""
    await warm_up(served)
    processes = served.engine(), loaders(served)
    tally = Tally()
    watcher = Watcher(served, options)
    os.nice(options.niceness)
    with tempfile.TemporaryDirectory(prefix="octavo-damaged-") as name:
        try:
            mutants = await asyncio.to_thread(undamaged, model, Path(name))
            baseline = await asyncio.to_thread(watcher.report)
            began = time.monotonic()
            await try_all(served, Path(name), damages(mutants, count, options.seed), tally)
            seconds = time.monotonic() - began
            attacked = await asyncio.to_thread(watcher.finish)
        finally:
            watcher.end()
    faults = tally.faults + [f"watched: {wrong}" for wrong in attacked["wrong"][:KEPT_FAULTS]]
    faults += log_faults(log)
    if processes != (served.engine(), loaders(served)):
        faults.append("the engine or its loader was restarted")
    limit = baseline["worst_gap_ms"] + MAX_GAP_MS
    worst = attacked["worst_gap_ms"]
    return {
        "files": sum(tally.outcomes.values()),
        "different": min(len(mutants), count),
        "seconds": seconds,
        "outcomes": dict(tally.outcomes.most_common()),
        "baseline": baseline,
        "attacked": attacked,
        "faults": faults,
        "pauses": [f"a gap of {worst:.0f} ms, above {limit:.0f} ms"] if worst > limit else [],
    }


def settings_of(model: str) -> dict[str, Any]:
    """Return the settings of a server whose real engine takes adapters."""
    options = {"max_model_len": 1024, "max_num_seqs": 64, "enable_lora": True}
    options |= {"max_saved_loras": 4}
    return SETTINGS | {"model": model, "options": options}


def attack_by_files(count: int, options: Options, directory: Path) -> dict[str, Any]:
    """Start a server with a real model, a tiny one unless one is named, and measure."""
    model = options.model
    if model is None:
        place = directory / "model"
        place.mkdir()
        make_model(place)
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**SIZES, **config, **LONGER}))
        model = str(place)
    log = directory / "log-of-files"
    with log.open("w") as file, Served(settings_of(model), file) as served:
        report = uvloop.run(measure_files(served, count, model, options, log))
        code = served.end()
    if code:
        report["faults"].append(f"the exit code is {code}")
    return report
