"""The commands of docs/adapters.md train an adapter, serve it, and exchange it."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.env import child_environment
from tests.api.tiny import make_model

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "adapters.md"
TRAIN = """
import os
import sys

import peft
import torch
from transformers import LlamaForCausalLM

model = LlamaForCausalLM.from_pretrained(os.environ["MODEL"])
model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", lora_alpha=32))
torch.manual_seed(os.path.exists("adapters"))
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.add_(torch.randn_like(parameter))
model.save_pretrained(sys.argv[sys.argv.index("--out") + 1])
"""
SECONDS = 300  # until something must have happened


def free_port() -> int:
    """Return a port that is free, and not one that the system gives to others meanwhile."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def commands(tmp_path: Path) -> list[str]:
    """The commands of the page, with the test's own model, programs and port."""
    section = PAGE.read_text("utf-8").partition("## From training to a changed adapter")[2]
    found: list[str] = re.findall(r"^\$ (.+)$", section.partition("\n## ")[0], re.MULTILINE)
    port = free_port()
    model = make_model(tmp_path)
    more = f"--port {port} --num-gpu-blocks-override 60 --lora-directory-seconds 0.1"
    changes = {
        "python ": f"MODEL={model} {sys.executable} -W ignore ",
        "octavo serve smollm2": f"exec {sys.executable} -W ignore -m octavo serve {model} {more}",
        "localhost:8000": f"127.0.0.1:{port}",
        " &": "",
    }
    for word, other in changes.items():
        found = [
            each if word == " &" and each != found[1] else each.replace(word, other)
            for each in found
        ]
    (tmp_path / "train.py").write_text(TRAIN)
    return found


def run(command: str, place: Path) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=place,
        env=child_environment({"OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@contextlib.contextmanager
def running(command: str, place: Path) -> Iterator[None]:
    """Run a server, and end it in any case."""
    environment = child_environment({"OMP_NUM_THREADS": "1", "OCTAVO_CACHE": str(place / "cache")})
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=place, env=environment, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def until_answered(command: str, place: Path, text: str | None) -> Any:
    """Repeat a command until its answer has a text other than one before; return the text."""
    stop = time.monotonic() + SECONDS
    while time.monotonic() < stop:
        with contextlib.suppress(subprocess.CalledProcessError, json.JSONDecodeError, KeyError):
            found = json.loads(run(command, place))["choices"][0]["text"]
            if found != text:
                return found
        time.sleep(0.1)
    raise AssertionError((place / "log").read_text())


def test_five_commands_train_serve_and_exchange_an_adapter(
    commands: list[str], tmp_path: Path
) -> None:
    train, serve, ask, train_again, look = commands
    run(train, tmp_path)
    assert (tmp_path / "adapters" / "sql" / "adapter_model.safetensors").exists()
    with running(serve, tmp_path):
        first = until_answered(ask, tmp_path, None)
        run(train_again, tmp_path)
        assert until_answered(ask, tmp_path, first) != first
        models = [model["id"] for model in json.loads(run(look, tmp_path))["data"]]
        assert models[1:] == ["sql"]
