"""The installed engines, each with the settings that suit it best on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import models, rows
from benchmarks.peers.engines import (
    Engine,
    IkLlamaEngine,
    LlamaEngine,
    MemoryReader,
    WorkerEngine,
)
from benchmarks.peers.servers import ServerEngine
from octavo.backends.native import _native

ROOT = Path(__file__).resolve().parent.parent.parent
INT8_BITS = 8.5  # of each weight: a code, and its share of a scale for 32
LENGTHS = {"max_model_len": 2304, "max_num_seqs": 64}
# As much KV as vLLM has, taken at the start, as vLLM and llama.cpp take it.
STEADY = {"kv_cache_memory_bytes": 1 << 30, "preallocate_kv_cache": True}
KINDS = ("octavo", "llama", "ik", "vllm", "zentorch", "openvino", "transformers")
TIERS = "tiers"  # the kind of engines of ours that use one tier for everything


@dataclass(frozen=True, slots=True)
class Places:
    """The places of the peers: the programs of both llama.cpp, the others' Pythons."""

    llama: Path
    ik: Path
    vllm: Path
    zentorch: Path
    openvino: Path
    transformers: Path
    models: Path
    log: Path
    threads: int
    preload: str = ""

    @classmethod
    def installed_in(cls, directory: Path, models: Path, log: Path, threads: int) -> Places:
        """Return the places of the peers in a directory, as `make peers` installs them."""

        def python(kind: str) -> Path:
            return directory / kind / "bin" / "python"

        return cls(
            llama=directory / "llama.cpp",
            ik=directory / "ik_llama.cpp",
            vllm=python("vllm"),
            zentorch=python("zentorch"),
            openvino=python("openvino"),
            transformers=python("transformers"),
            models=models.absolute(),
            log=log,
            threads=threads,
        )

    def has(self, kind: str) -> bool:
        """Return whether a kind of engine is installed."""
        if kind in ("octavo", TIERS):
            return True
        place: Path = getattr(self, kind)
        return (place / "llama-bench" if kind in ("llama", "ik") else place).exists()


def find(places: Places, kinds: list[str], names: set[str]) -> list[Engine]:
    """Return the installed engines among `names` of these kinds, Octavo's first."""
    makers = {
        "octavo": _octavo,
        "llama": _llama,
        "ik": _ik,
        "vllm": _vllm,
        "zentorch": _vllm,
        "openvino": _openvino,
        "transformers": _transformers,
        TIERS: _tiers,
    }
    places.models.mkdir(parents=True, exist_ok=True)
    found: list[Engine] = []
    for kind in kinds:
        if not places.has(kind):
            where = getattr(places, kind)
            print(f"{kind} is not installed at {where} (make peers): left out", file=sys.stderr)
            continue
        try:
            made = [engine for engine in makers[kind](places, kind, names) if engine.name in names]
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{kind} cannot have its model made, and is left out: {error}", file=sys.stderr)
            continue
        found.extend(made)
    return found


def _plain(places: Places) -> models.Weights:
    quantize = places.llama / "llama-quantize"
    return models.smollm2_bf16(places.models, quantize if quantize.exists() else None)


def _environment(places: Places) -> dict[str, str]:
    # Compiled once, as what is installed is; wherever the shell says not to write it.
    compiled = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(places.log.parent / "bytecode"),
    }
    return {"PYTHONPATH": str(ROOT), **compiled}


def _octavo(places: Places, kind: str, names: set[str]) -> Iterator[Engine]:
    path = _environment(places)
    options = {**LENGTHS, "num_threads": places.threads}
    plain = _plain(places)
    four, directory = str(models.smollm2().gguf), str(plain.directory)

    def worker(name: str, model: str, kept: bool = True, **more: object) -> WorkerEngine:
        asked = {**options, **more}
        of_ours = (name, sys.executable, kind, model, asked, path, places.log, kept)
        return WorkerEngine(*of_ours, steady=STEADY)

    yield worker(rows.GGUF, four)
    yield worker(rows.BF16, directory, dtype="bfloat16")
    if names & {rows.LARGE, rows.LARGE_INT8, rows.MEMORY, rows.MEMORY_INT8}:
        large = models.llama_1b(places.models)
        assert large.directory is not None
        # The directory holds no tokenizer: the GGUF beside it does, and nothing here needs it.
        both = {"tokenizer": str(large.gguf), "dtype": "bfloat16"}
        size = (large.directory / "model.safetensors").stat().st_size
        # Each reader follows its engine at once, since a shared memory changes its speed.
        yield worker(rows.LARGE, str(large.directory), False, **both)
        yield MemoryReader(rows.MEMORY, size, places.threads)
        yield worker(rows.LARGE_INT8, str(large.directory), False, cpu_weights="int8", **both)
        yield MemoryReader(rows.MEMORY_INT8, round(size / 16 * INT8_BITS), places.threads)
    if names & {rows.LARGE_Q4_K, rows.MEMORY_Q4_K} and places.has("llama"):
        quantized = models.llama_1b_q4_k(places.models, places.llama / "llama-quantize")
        yield worker(rows.LARGE_Q4_K, str(quantized), False)
        yield MemoryReader(rows.MEMORY_Q4_K, quantized.stat().st_size, places.threads)
    for name, model, dtype in zip(
        rows.SERVED, (four, directory), ("auto", "bfloat16"), strict=True
    ):
        command = (
            *(sys.executable, "-m", "octavo", "serve", model, "--port", "{port}"),
            *("--served-model-name", "model", "--dtype", dtype),
            *("--max-model-len", str(LENGTHS["max_model_len"])),
            *("--num-threads", str(places.threads)),
        )
        yield ServerEngine(name, command, path, places.log)


def _tiers(places: Places, kind: str, names: set[str]) -> Iterator[Engine]:
    del kind, names
    options = {**LENGTHS, "num_threads": places.threads}
    plain = _plain(places).directory
    sources = {rows.GGUF: (str(models.smollm2().gguf), "auto"), rows.BF16: (str(plain), "bfloat16")}
    for ours, (model, dtype) in sources.items():
        for name, tier in rows.forced(ours).items():
            if tier in _native.tiers():
                path = {**_environment(places), "OCTAVO_CPU_ISA": tier}
                asked = {**options, "dtype": dtype}
                of_ours = (name, sys.executable, "octavo", model, asked, path, places.log)
                yield WorkerEngine(*of_ours, steady=STEADY)


def _llama(places: Places, kind: str, names: set[str]) -> Iterator[Engine]:
    del kind
    quantize, threads = places.llama / "llama-quantize", places.threads
    files = (
        models.smollm2().gguf,
        _plain(places).gguf,
        models.smollm2_q8(places.models, quantize),
    )
    offline = (rows.LLAMA_GGUF, rows.LLAMA_BF16, rows.LLAMA_Q8)
    for name, file in zip(offline, files, strict=True):
        yield LlamaEngine(name, places.llama, file, threads)
    if names & {rows.LLAMA_LARGE, rows.LLAMA_LARGE_Q4_K}:
        large = models.llama_1b(places.models)
        yield LlamaEngine(rows.LLAMA_LARGE, places.llama, large.gguf, threads)
        quantized = models.llama_1b_q4_k(places.models, quantize)
        yield LlamaEngine(rows.LLAMA_LARGE_Q4_K, places.llama, quantized, threads)
    for name, file in zip(rows.LLAMA_SERVED, files, strict=True):
        command = (
            *(str(places.llama / "llama-server"), "-m", str(file), "--port", "{port}"),
            *("-t", str(threads), "-np", "{streams}", "-c", "{context}"),
            # Its cache of prompts costs a sixth of the speed, and nothing here comes twice.
            *("--cache-ram", "0", "--no-ui"),
        )
        yield ServerEngine(name, command, {}, places.log)


def _ik(places: Places, kind: str, names: set[str]) -> Iterator[Engine]:
    """Return ik_llama.cpp on the files that our own figures beside it are of."""
    del kind, names
    threads = places.threads
    yield IkLlamaEngine(rows.IK_GGUF, places.ik, models.smollm2().gguf, threads)
    yield IkLlamaEngine(rows.IK_BF16, places.ik, _plain(places).gguf, threads)


def _vllm(places: Places, kind: str, names: set[str]) -> Iterator[Engine]:
    del names
    python: Path = getattr(places, kind)
    directory = str(_plain(places).directory)
    threads = places.threads
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # gigabytes: 45,000 tokens of the small model
        # By itself it keeps one of two processors for the engine's Python.
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_USE_AOT_COMPILE": "0",
        "LD_PRELOAD": places.preload or ":".join(_preloaded(python)),
    }
    index = ("vllm", "zentorch").index(kind)
    name = (rows.VLLM, rows.ZENTORCH)[index]
    options = {"dtype": "bfloat16", **LENGTHS}
    yield WorkerEngine(name, str(python), "vllm", directory, options, environment, places.log)
    command = (
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", directory),
        *("--port", "{port}", "--served-model-name", "model", "--dtype", "bfloat16"),
        *("--max-model-len", str(LENGTHS["max_model_len"])),
        *("--max-num-seqs", str(LENGTHS["max_num_seqs"]), "--disable-uvicorn-access-log"),
    )
    yield ServerEngine(rows.VLLM_SERVED[index], command, environment, places.log, kept=True)


def _preloaded(python: Path) -> Iterator[str]:
    """Return the allocator and OpenMP library that vLLM's documentation preloads, if present."""
    allocators = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    for found in (*allocators[:1], python.parent.parent / "lib" / "libiomp5.so"):
        if found.exists():
            yield str(found)
        else:
            print(f"vLLM does without {found.name}, which is not here", file=sys.stderr)
    if not allocators:
        print("vLLM does without tcmalloc: apt install libtcmalloc-minimal4", file=sys.stderr)


def _openvino(places: Places, kind: str, names: set[str]) -> Iterator[Engine]:
    del names
    plain = _plain(places)
    assert plain.directory is not None
    made = plain.directory.with_name(plain.directory.name.replace("bf16", "openvino"))
    model = models.openvino(plain.directory, made, places.openvino)
    options = {
        "cache_size": 2,  # gigabytes
        "max_num_seqs": LENGTHS["max_num_seqs"],
        "max_num_batched_tokens": 2048,
        "INFERENCE_PRECISION_HINT": "bf16",
        "INFERENCE_NUM_THREADS": places.threads,
    }
    yield WorkerEngine(
        rows.OPENVINO, str(places.openvino), kind, str(model), options, {}, places.log
    )


def _transformers(places: Places, kind: str, names: set[str]) -> Iterator[Engine]:
    del names
    python, model = str(places.transformers), str(_plain(places).directory)
    options = {"threads": places.threads}
    yield WorkerEngine(rows.TRANSFORMERS, python, kind, model, options, {}, places.log, kept=False)
