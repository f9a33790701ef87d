"""The engines without a server: how each is started and how it runs a case."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.native.kernels import peak_library
from benchmarks.peers import processes
from benchmarks.peers.cases import Case, rate
from octavo.backends.native import _native
from octavo.env import child_environment

WORKER = Path(__file__).with_name("worker.py")
WARM_REQUESTS, WARM_TOKENS = 4, 4
LIMIT_SECONDS = 900
Metrics = dict[str, float]


class EngineError(RuntimeError):
    """An engine that did not start, or did not do what a case requires."""


class Engine(Protocol):
    """An engine that measures cases."""

    name: str
    version: str

    def measure(self, case: Case, seed: int) -> Metrics:
        """Measure a case and return its figures by name."""

    def close(self) -> None:
        """Stop the engine and release its resources."""


@dataclass
class WorkerEngine:
    """An engine behind worker.py, started at its first case.

    An engine that starts slowly is kept from round to round, and stopped in between.
    """

    name: str
    python: str
    kind: str  # worker.py's first argument
    model: str
    options: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path = Path(os.devnull)
    kept: bool = True
    steady: Mapping[str, object] = field(default_factory=dict)  # options, unless the start is timed
    version: str = ""
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def measure(self, case: Case, seed: int) -> Metrics:
        if case.figure == "start":
            return self._first_token(case, seed)
        if self._process is None:
            self._start()
            self._learn_version()
            # Warm, not counted.
            prompts = case.prompts(-1)[:WARM_REQUESTS]
            self._call(prompts, min(case.output_tokens, WARM_TOKENS))
        if case.figure == "python":
            metrics = self._python(case, seed)
        else:
            first_s = 0.0
            if case.figure == "decode":
                first_s = self._call(case.prompts(2 * seed + 1), 1)["seconds"]
            whole_s = self._call(case.prompts(2 * seed), case.output_tokens)["seconds"]
            metrics = {"tok/s": rate(case, whole_s, first_s)}
        if not self.kept:
            self.close()
        return metrics

    def close(self) -> None:
        if self._process is not None:
            processes.end(self._process)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None

    def _first_token(self, case: Case, seed: int) -> Metrics:
        """Measure a new process; before the first, the files may not be in memory."""
        for _ in range(1 if self.version else 2):
            fresh = replace(self, steady={})
            began = time.perf_counter()
            try:
                fresh._start()
                fresh._call(case.prompts(seed), 1)
                seconds = time.perf_counter() - began
                fresh._learn_version()
            finally:
                fresh.close()
        self.version = fresh.version
        return {"seconds": seconds}

    def _python(self, case: Case, seed: int) -> Metrics:
        """Return the time between two runs of the native program, for one sequence and for all."""
        prompts = case.prompts(seed)
        one = self._call(prompts[:1], case.output_tokens, gaps=True)["gap_s"]
        all_of_them = self._call(prompts, case.output_tokens, gaps=True)["gap_s"]
        further = (all_of_them - one) / (case.requests - 1)
        return {"one_us": one * 1e6, "further_us": further * 1e6}

    def _start(self) -> None:
        options = {**self.options, **self.steady}
        settings = [f"{key}={json.dumps(value)}" for key, value in options.items()]
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
        self._answer()  # it is loaded

    def _learn_version(self) -> None:
        """Ask for the version, which is no part of a start."""
        assert self._process is not None
        processes.go_on(self._process.pid)
        self.version = self._ask({"version": True})["version"]

    def _call(
        self, prompts: list[list[int]], output_tokens: int, gaps: bool = False
    ) -> dict[str, float]:
        assert self._process is not None
        processes.go_on(self._process.pid)
        answer = self._ask({"prompts": prompts, "output_tokens": output_tokens, "gaps": gaps})
        processes.stop(self._process.pid)
        expected = len(prompts) * output_tokens
        if answer["tokens"] != expected:
            raise EngineError(f"{self.name} wrote {answer['tokens']} tokens of {expected}")
        return answer

    def _ask(self, asked: Mapping[str, object]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise EngineError(f"{self.name} ended; its log is {self.log}") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        # Who says nothing for too long is ended, and the line below is empty.
        watch = threading.Timer(LIMIT_SECONDS, processes.end, (self._process,))
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        if not line:
            raise EngineError(f"{self.name} ended; its log is {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class LlamaEngine:
    """llama.cpp's own benchmarks: llama-bench, and llama-batched-bench for several streams."""

    name: str
    programs: Path  # the directory they are in
    model: Path
    threads: int
    version: str = ""

    def measure(self, case: Case, seed: int) -> Metrics:
        del seed  # they make their own prompts
        match case.figure:
            case "start":
                if not self.version:  # as in WorkerEngine
                    self._bench("-p", 0, "-n", 1, "--no-warmup")
                began = time.perf_counter()
                self._bench("-p", 0, "-n", 1, "--no-warmup")
                return {"seconds": time.perf_counter() - began}
            case "prefill":
                return {"tok/s": self._bench("-p", case.prompt_tokens, "-n", 0)}
            case "decode" if case.requests == 1:
                depth = ("-d", case.prompt_tokens)
                return {"tok/s": self._bench("-p", 0, "-n", case.output_tokens, *depth)}
            case "decode" | "total" if not case.shared_tokens:
                return {"tok/s": self._batched(case)}
        raise EngineError(f"{self.name} has no program for {case.name}")

    def close(self) -> None:
        """Return at once: no process is left running."""

    def _bench(self, *asked: object) -> float:
        report = json.loads(self._run("llama-bench", "-r", 1, "-o", "json", *asked))[0]
        self.version = f"llama.cpp {report['build_commit']}"
        return float(report["avg_ts"])

    def _batched(self, case: Case) -> float:
        context = case.requests * (case.prompt_tokens + case.output_tokens) + 64
        report = self._run(
            "llama-batched-bench",
            *("-c", context, "-b", 2048, "-npp", case.prompt_tokens, "-ntg", case.output_tokens),
            *("-npl", case.requests, "--output-format", "jsonl"),
        )
        line = next(line for line in reversed(report.splitlines()) if line.startswith("{"))
        figures = json.loads(line)
        if case.figure == "decode":
            return float(figures["speed_tg"])
        return case.requests * case.output_tokens / float(figures["t"])

    def _run(self, program: str, *asked: object) -> str:
        command = [str(self.programs / program), "-m", str(self.model), "-t", str(self.threads)]
        done = subprocess.run(
            [*command, *map(str, asked)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        if done.returncode:
            raise EngineError(f"{program} failed: {done.stderr[-500:]}")
        return done.stdout


@dataclass
class IkLlamaEngine(LlamaEngine):
    """ik_llama.cpp's forms of the same programs, with the settings that make it fastest."""

    def _bench(self, *asked: object) -> float:
        words = ["-w" if word == "--no-warmup" else word for word in asked]
        if words[-1] == "-w":
            words.append(0)
        if "-d" in words:  # a depth before what is generated is a pair here
            at = words.index("-d")
            prompt, words = words[at + 1], words[:at]
            words = ["-p", 0, "-n", 0, "-gp", f"{prompt},{words[words.index('-n') + 1]}"]
        report = self._run(
            *("llama-bench", "-r", 1, "-o", "json", "-rtr", 1, "-thp", 1, "-fa", 1), *words
        )
        figures = json.loads(report[report.index("[") :])[-1]
        self.version = f"ik_llama.cpp {figures['build_commit']}"
        return float(figures["avg_ts"])

    def _batched(self, case: Case) -> float:
        context = case.requests * (case.prompt_tokens + case.output_tokens) + 64
        report = self._run(
            *("llama-batched-bench", "-rtr", "-thp", "-fa", "on", "-c", context, "-b", 2048),
            *("-npp", case.prompt_tokens, "-ntg", case.output_tokens, "-npl", case.requests),
        )
        rows = [line for line in report.splitlines() if re.match(r"\| *\d", line)]
        if not rows:
            raise EngineError(f"{self.name} printed no row of its table")
        columns = [float(cell) for cell in rows[-1].strip("|").split("|")]
        if case.figure == "decode":
            return columns[7]
        return case.requests * case.output_tokens / columns[8]


@dataclass
class MemoryReader:
    """A bound instead of an engine: reads all weights once for each token, in a plain loop.

    It has as many threads as the engines, as much memory as their weights and as many tokens, so
    that caches hold as much of it and the machine's other guests disturb it as long.
    """

    name: str
    weight_bytes: int
    threads: int
    version: str = ""

    def measure(self, case: Case, seed: int) -> Metrics:
        del seed
        wide = any(tier.startswith("avx512") for tier in _native.tiers())
        loop = getattr(peak_library(), "read_all_512" if wide else "read_all_256")
        share = self.weight_bytes // self.threads
        areas = [np.ones(share, np.uint8) for _ in range(self.threads)]

        def read(area: npt.NDArray[np.uint8]) -> None:
            for _ in range(case.output_tokens):
                loop(area.ctypes.data, share)

        readers = [threading.Thread(target=read, args=(area,)) for area in areas]
        began = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        tokens_a_second = case.output_tokens / (time.perf_counter() - began)
        return {"tok/s": tokens_a_second, "GB/s": tokens_a_second * self.weight_bytes / 1e9}

    def close(self) -> None:
        """Return at once: no process is left running."""
