"""The engines that can be asked: how each is started, and how a case is put to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.peers.cases import Case, rate
from octavo.env import child_environment

WORKER = Path(__file__).with_name("worker.py")
ROOT = Path(__file__).resolve().parent.parent.parent


class EngineError(RuntimeError):
    """An engine that could not be started, or did not do what a case asks for."""


class Engine(Protocol):
    """Something with a name that gives a case's figure."""

    name: str

    def measure(self, case: Case, seed: int) -> float | None:
        """Tokens per second; None if this engine has no such case."""

    def close(self) -> None:
        """End it."""


@dataclass
class WorkerEngine:
    """An engine behind worker.py, started at its first case and kept."""

    name: str
    python: str
    kind: str  # worker.py's first argument
    model: str
    options: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path = Path(os.devnull)
    _process: subprocess.Popen[str] | None = None

    def measure(self, case: Case, seed: int) -> float | None:
        if self.kind == "transformers" and case.shared_tokens:
            return None
        if self._process is None:
            self._start()
            self._call(case.prompts(-1), min(case.output_tokens, 8))  # warm, not counted
        first_s = 0.0
        if case.figure == "decode":
            first_s = self._call(case.prompts(2 * seed + 1), 1)
        whole_s = self._call(case.prompts(2 * seed), case.output_tokens)
        return rate(case, whole_s, first_s)

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            os.killpg(self._process.pid, signal.SIGKILL)  # with whatever it has started
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        settings = [f"{key}={json.dumps(value)}" for key, value in self.options.items()]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [self.python, str(WORKER), self.kind, self.model, *settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=child_environment(self.environment),
                start_new_session=True,
            )
        self._answer()

    def _call(self, prompts: list[list[int]], output_tokens: int) -> float:
        assert self._process is not None
        assert self._process.stdin is not None
        asked = {"prompts": prompts, "output_tokens": output_tokens}
        # Some engines' threads spin while they have nothing to do: they are stopped meanwhile, so
        # that they cost the others nothing.
        os.killpg(self._process.pid, signal.SIGCONT)
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        os.killpg(self._process.pid, signal.SIGSTOP)
        expected = len(prompts) * output_tokens
        if answer["tokens"] != expected:
            raise EngineError(f"{self.name} wrote {answer['tokens']} tokens of {expected}")
        return answer["seconds"]

    def _answer(self) -> dict[str, float]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"{self.name} ended; its log is {self.log}")
        answer: dict[str, float] = json.loads(line)
        return answer


@dataclass
class LlamaEngine:
    """llama.cpp by its own benchmarks: llama-bench, and llama-batched-bench for several streams."""

    name: str
    programs: Path  # the directory they are in
    model: str
    threads: int

    def measure(self, case: Case, seed: int) -> float | None:
        del seed  # they make their own prompts
        if case.shared_tokens:
            return None
        if case.figure == "prefill":
            return self._bench("-p", case.prompt_tokens, "-n", 0)
        if case.figure == "decode" and case.requests == 1:
            return self._bench("-p", 0, "-n", case.output_tokens, "-d", case.prompt_tokens)
        return self._batched(case)

    def close(self) -> None:
        """Nothing stays behind."""

    def _bench(self, *asked: object) -> float:
        told = self._run("llama-bench", "-r", 1, "-o", "json", *asked)
        return float(json.loads(told)[0]["avg_ts"])

    def _batched(self, case: Case) -> float:
        context = case.requests * (case.prompt_tokens + case.output_tokens) + 64
        told = self._run(
            "llama-batched-bench",
            *("-c", context, "-b", 2048, "-npp", case.prompt_tokens, "-ntg", case.output_tokens),
            *("-npl", case.requests, "--output-format", "jsonl"),
        )
        line = next(line for line in reversed(told.splitlines()) if line.startswith("{"))
        figures = json.loads(line)
        if case.figure == "decode":
            return float(figures["speed_tg"])
        return case.requests * case.output_tokens / float(figures["t"])

    def _run(self, program: str, *asked: object) -> str:
        command = [str(self.programs / program), "-m", self.model, "-t", str(self.threads)]
        done = subprocess.run(
            [*command, *map(str, asked)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EngineError(f"{program} failed: {done.stderr[-500:]}")
        return done.stdout


def octavo(name: str, model: str, **options: object) -> WorkerEngine:
    """This checkout, in this environment."""
    path = {"PYTHONPATH": str(ROOT)}
    return WorkerEngine(name, sys.executable, "octavo", model, options, path)
