"""`octavo bench serve` at a server that lies, and with traces that are damaged.

Each lie must become the error of one request, among which the honest one is measured; the model's
name must be harmless in the table, the picture and the file's name; Ctrl-C must end an answer that
has no end. A damaged trace must be refused in a sentence.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.hostile.measured.server import ENDLESS, HONEST, MODELS, LyingServer
from octavo.bench.load import writers
from octavo.bench.load.source import Data, open_source
from octavo.cli.commands import INTERRUPTED, OK
from octavo.core.config import ConfigError
from octavo.env import child_environment

LIMIT_SECONDS = 300.0
_LINE = '{"timestamp": 27482, "input_length": 640, "output_length": 52, "hash_ids": [46, 47]}\n'
_CSV = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,40,6,46,x\n"
_MARKS = ('"', "{", "}", "[", "-", "9" * 30, "e999", ",", "\n", "\x00", "null", "NaN", "\ud83d")


def attack_measurements(directory: Path, num_traces: int, seed: int) -> list[str]:
    """Return what is wrong with measurements of a lying server, and of damaged traces."""
    faults = asyncio.run(_measured(directory)) + asyncio.run(_interrupted())
    return [f"measured: {each}" for each in (*faults, *_damaged(directory, num_traces, seed))]


async def _command(server: LyingServer, *words: str) -> asyncio.subprocess.Process:
    url = f"http://127.0.0.1:{server.port}"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octavo", "bench", "serve", url, "--disable-tqdm", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment({}),
    )


async def _measured(directory: Path) -> list[str]:
    """Let each lie answer one request of a run; its first is the honest one."""
    server = LyingServer()
    await server.start()
    picture = directory / "picture.svg"
    try:
        process = await _command(
            server,
            *("--num-prompts", str(len(MODELS)), "--lora-assignment", "round-robin"),
            *("--lora-modules", *MODELS, "--random-input-len", "4", "--plot", str(picture)),
            *("--save-result", "--result-dir", str(directory)),
        )
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_SECONDS)
    finally:
        server.stop()
    faults = _wrong_output(out + err)
    if process.returncode != OK:
        faults.append(f"the exit code is {process.returncode}: {err[-500:]!r}")
        return faults
    (result,) = directory.glob("*.json")
    found = json.loads(result.read_text())
    if found["completed"] != 1 or found["failed"] != len(MODELS) - 1:
        faults.append(f"{found['completed']} are complete, and {found['failed']} have failed")
    if b"<script" in picture.read_bytes():
        faults.append("the picture has a name as markup")
    ElementTree.parse(picture)
    return faults


async def _interrupted() -> list[str]:
    """Interrupt a measurement one of whose answers has no end."""
    server = LyingServer()
    await server.start()
    try:
        process = await _command(
            server,
            *("--num-prompts", "2", "--lora-modules", HONEST, ENDLESS, "--random-input-len", "4"),
            *("--lora-assignment", "round-robin"),
        )
        await asyncio.wait_for(server.has_endless.wait(), LIMIT_SECONDS)
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_SECONDS)
    finally:
        server.stop()
    faults = _wrong_output(out + err)
    if process.returncode != INTERRUPTED:
        faults.append(f"the exit code of an interrupted run is {process.returncode}")
    return faults


def _wrong_output(text: bytes) -> list[str]:
    found = [each for each in (b"Traceback", b"bug in Octavo", b"\x1b", b"\x00") if each in text]
    return [f"the output has {each!r}" for each in found]


def _damaged(directory: Path, count: int, seed: int) -> list[str]:
    """Read damaged traces; each must be refused with a ConfigError, or have requests."""
    chance, path, faults = random.Random(seed), directory / "trace", []
    write = writers.token_ids(range(10), "0")
    for number in range(count):
        name, text = chance.choice((("mooncake", _LINE * 2), ("burstgpt", _CSV)))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice(_MARKS) + text[at + chance.randint(0, 9) :]
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            asked = open_source(Data(name, 9, path))(random.Random(0), write)
            if not asked or not all(each.prompt and each.max_tokens > 0 for each in asked):
                faults.append(f"trace {number} has requests without tokens: {text!r}")
        except ConfigError:
            pass
        except Exception as error:
            faults.append(f"trace {number} is no ConfigError, but {error!r}: {text!r}")
    return faults
