"""Attacks on the routes that change adapters: by paths, special files, names and bodies."""

from __future__ import annotations

import json
import os
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.hostile.attack import Attack, Kinds, post, request

KINDS = Kinds()
LOAD, UNLOAD, SCALES = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/lora-adapters"
OF_SGLANG = ("/load_lora_adapter", "/unload_lora_adapter")
PATHS = (
    *("", "/", ".", "..", "~", "no/such/place", "/etc/passwd", "/root/.ssh", "/proc/self/fd"),
    *("/proc/self/environ", "/dev", "/dev/zero", "/dev/stdin", "/tmp", "http://localhost/adapter"),
    *("a\x00b", "a\nb", "\ud800", "x" * 300, "x" * 5000, "../" * 1000, "x/" * 2000),
)
NAMES = ("", "\x00", "a\nb", "\ud800", "x" * 513, "x" * 100_000, "../../etc", "no-such-adapter")
NOT_OBJECTS = (b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"[" * 10_000, b"{}")
NOT_TEXTS: tuple[Any, ...] = (None, 1, 1.5, True, [], {}, ["x"], {"x": "x"})


@cache
def _special() -> TemporaryDirectory[str]:
    """Make files that must not be opened, or not be read to their end."""
    made = TemporaryDirectory(prefix="octavo-hostile-")
    place = Path(made.name)
    os.mkfifo(place / "pipe.gguf")
    (place / "zero.gguf").symlink_to("/dev/zero")
    (place / "loop.gguf").symlink_to("loop.gguf")
    with (place / "large.gguf").open("wb") as file:
        file.truncate(1 << 40)  # takes no room
    for kind in ("pipe", "zero", "loop", "large"):
        (place / kind).mkdir()
        (place / kind / "adapter_config.json").write_text("{}")
        (place / kind / "adapter_model.safetensors").symlink_to(f"../{kind}.gguf")
    return made


@KINDS.add()
def loads_adapters_from_wrong_paths(chance: random.Random) -> Attack:
    body = {"lora_name": f"a{chance.randrange(9)}", "lora_path": chance.choice(PATHS)}
    return Attack((post(LOAD, body),))


@KINDS.add()
def loads_adapters_from_special_files(chance: random.Random) -> Attack:
    kind = chance.choice(("pipe", "zero", "loop", "large")) + chance.choice(("", ".gguf"))
    path = f"{_special().name}/{kind}"
    return Attack((post(LOAD, {"lora_name": "special", "lora_path": path}),))


@KINDS.add()
def loads_and_unloads_adapters_of_wrong_names(chance: random.Random) -> Attack:
    name = chance.choice(NAMES)
    if chance.random() < 0.5:
        return Attack((post(UNLOAD, {"lora_name": name}),))
    return Attack((post(LOAD, {"lora_name": name, "lora_path": "/no/such/place"}),))


@KINDS.add()
def loads_adapters_by_wrong_bodies(chance: random.Random) -> Attack:
    path = chance.choice((LOAD, UNLOAD, SCALES))  # errors of SGLang's have a form of their own
    if chance.random() < 0.5:
        wrong = [each for each in NOT_OBJECTS if path != SCALES or each != b"[]"]
        return Attack((post(path, chance.choice(wrong)),))
    value = chance.choice(NOT_TEXTS)
    if path == SCALES:
        return Attack((post(path, [{"id": value, "scale": "1"}]),))
    return Attack((post(path, {"lora_name": value, "lora_path": value}),))


@KINDS.add()
def loads_adapters_without_a_key(chance: random.Random) -> Attack:
    path = chance.choice((LOAD, UNLOAD, *OF_SGLANG, SCALES))
    body = json.dumps({"lora_name": "x", "lora_path": _special().name}).encode()
    return Attack((request(path, body, key=chance.choice((None, "", "wrong"))),))
