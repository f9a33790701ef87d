"""Compare embeddings with peers: all-MiniLM-L6-v2, the same texts, in turns.

    make peers                                  install them (once)
    python -m benchmarks.peers.embeddings       offline, and over HTTP with 1 and 32 clients
    python -m benchmarks.peers.embeddings --rounds 3 --texts 128 --clients 32
    python -m benchmarks.peers.embeddings --engines octavo,fastembed    some of them only

Texts of 16 to 256 tokens are mixed. Offline, an engine gets all of them at once (llama-server in
one request); over HTTP, each client sends one text after the other. The figures are texts a second,
and the least cosine between each engine's vectors and those of sentence-transformers. fastembed
reads an ONNX file that is made here of the same weights, and llama-server a GGUF file in fp32. The
first row is compared with them: its weights are the file's, in fp32. Those below it have keys and
values in fp32 too, or weights in bf16 or int8.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import processes
from benchmarks.peers.cases import Case
from benchmarks.peers.engines import EngineError
from benchmarks.peers.servers import ServerEngine
from benchmarks.peers.shaped import PEERS, ROOT, ratio
from octavo.api.text_model import load_tokenizer
from octavo.env import child_environment
from octavo.loader import resolve
from octavo.observe.machine import num_cores, processor

WORKER = Path(__file__).with_name("embeddings_worker.py")
SHORTEST, LONGEST = 16, 256
REFERENCE = "sentence-transformers"
# What ours must be, times the peer's speed.
MUST = {REFERENCE: 2.0, "fastembed": 1.2, "llama-server": 2.0}
CASE = Case("embeddings", "embeddings", "http", 1, LONGEST, 0, 0, 1)
LIMIT_SECONDS = 300


@dataclass
class Library:
    """A library behind embeddings_worker.py, stopped while others are measured."""

    name: str
    command: tuple[str, ...]
    log: Path
    version: str = ""
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def embed(self, texts: list[str], *, vectors: bool = False) -> dict[str, Any]:
        """Embed texts; return the seconds, and the vectors if they are asked for."""
        if self._process is None:
            with self.log.open("a") as log:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=child_environment({"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}),
                    start_new_session=True,
                )
            self.version = self._answer()["version"]
        assert self._process.stdin is not None
        processes.go_on(self._process.pid)
        self._process.stdin.write(json.dumps({"texts": texts, "vectors": vectors}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        processes.stop(self._process.pid)
        return answer

    def close(self) -> None:
        """End the process of the library, if it was started."""
        if self._process is not None:
            processes.end(self._process)

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"{self.name} ended; its log is {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Client:
    """A connection that is kept, for one request after the other."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of the texts of one request."""
        body = json.dumps({"model": "model", "input": texts, "encoding_format": "float"})
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/v1/embeddings", body, headers)
        response = self._connection.getresponse()
        reply = json.loads(response.read())
        if response.status != 200:
            raise EngineError(f"the server refused: {reply}")
        rows = sorted(reply["data"], key=lambda row: int(row["index"]))
        return [row["embedding"] for row in rows]


def served(port: int, texts: list[str], clients: int) -> float:
    """Return the seconds that the clients take for all texts, one in each request."""
    shares = [(Client(port), texts[index::clients]) for index in range(clients)]
    with ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        list(pool.map(lambda each: [each[0].embed([text]) for text in each[1]], shares))
        return time.perf_counter() - began


def make_texts(directory: Path, count: int) -> list[str]:
    """Cut texts of all lengths out of a book; the same ones each time."""
    tokenizer = load_tokenizer(resolve(str(directory)))
    prose = Path(__file__).parent.parent.joinpath("prose.txt").read_text("utf-8").split()
    generator = np.random.default_rng(17)
    texts = []
    for wanted in generator.integers(SHORTEST, LONGEST + 1, count):
        start = int(generator.integers(0, max(1, len(prose) - LONGEST)))
        words = prose[start : start + int(wanted)]
        while len(tokenizer.encode(" ".join(words))) > wanted and len(words) > 1:
            words.pop()
        texts.append(" ".join(words))
    return texts


def make_files(directory: Path, models: Path, installed: Path) -> tuple[Path, Path]:
    """Make the ONNX file's directory and the GGUF file, where they are not there."""
    onnx, gguf = models / "minilm-onnx", models / "minilm-f32.gguf"
    python, llama = installed / REFERENCE / "bin" / "python", installed / "llama.cpp"
    onnx.mkdir(parents=True, exist_ok=True)
    if not (onnx / "model.onnx").exists() and python.exists():
        for path in directory.glob("*.json"):
            (onnx / path.name).write_bytes(path.read_bytes())
        subprocess.run(
            [python, WORKER, "export", directory, onnx / "model.onnx"],
            check=True,
            capture_output=True,
        )
    if not gguf.exists() and python.exists() and (llama / "llama-server").exists():
        source = llama / "vendor" / "llama.cpp"
        command = [python, source / "convert_hf_to_gguf.py", directory]
        subprocess.run(
            [*command, "--outfile", gguf, "--outtype", "f32"],
            check=True,
            capture_output=True,
            env=child_environment({"PYTHONPATH": str(source / "gguf-py")}),
        )
    return onnx, gguf


def find(asked: argparse.Namespace, directory: Path, log: Path) -> tuple[list[Any], list[Any]]:
    """Return the libraries and the servers that are installed, Octavo's first."""
    installed, threads = asked.installed.absolute(), num_cores()[0]
    onnx, gguf = make_files(directory, asked.models.absolute(), installed)

    def library(name: str, python: Path | str, kind: str, model: Path, *more: str) -> Library:
        worker = (str(python), str(WORKER), kind, str(model), str(threads), *more)
        return Library(name, worker, log)

    libraries = [
        library("octavo", sys.executable, "octavo", directory),
        library("octavo fp32", sys.executable, "octavo", directory, "dtype=float32"),
        library("octavo bf16", sys.executable, "octavo", directory, "dtype=bfloat16"),
        library("octavo int8", sys.executable, "octavo", directory, "cpu_weights=int8"),
    ]
    for name, model in ((REFERENCE, directory), ("fastembed", onnx)):
        python = installed / name / "bin" / "python"
        if python.exists():
            libraries.append(library(name, python, name, model))
        else:
            print(f"{name} is not installed at {python} (make peers): left out", file=sys.stderr)
    serve = (sys.executable, "-m", "octavo", "serve", str(directory), "--port", "{port}")
    options = ("--served-model-name", "model", "--num-threads", str(threads))
    path = {"PYTHONPATH": str(ROOT)}
    servers = [ServerEngine("octavo", (*serve, *options), path, log, kept=True)]
    program = installed / "llama.cpp" / "llama-server"
    if gguf.exists():
        command = (
            *(str(program), "-m", str(gguf), "--port", "{port}", "-t", str(threads)),
            *("--embeddings", "-np", "32", "-c", str(32 * 2 * LONGEST), "-b", "2048", "-ub"),
            *("2048", "--cache-ram", "0", "--no-ui"),
        )
        servers.append(ServerEngine("llama-server", command, {}, log, kept=True))
    return libraries, servers


def measure(
    libraries: list[Library], servers: list[ServerEngine], texts: list[str], clients: list[int]
) -> Iterator[tuple[str, str, float]]:
    """Yield (case, engine, texts a second) of one round."""
    for library in libraries:
        seconds = library.embed(texts)["seconds"]
        yield "offline", library.name, len(texts) / seconds
    for server in servers:
        with server.serving(CASE) as port:
            if server.name == "llama-server":
                began = time.perf_counter()
                Client(port).embed(texts)
                yield "offline", server.name, len(texts) / (time.perf_counter() - began)
            for count in clients:
                some = texts[: max(32, len(texts) // 4)] if count == 1 else texts
                yield f"{count} clients", server.name, len(some) / served(port, some, count)


def cosines(vectors: dict[str, list[list[float]]]) -> Iterator[str]:
    """Yield the least cosine of each engine's vectors with the reference's."""
    reference = np.array(vectors.get(REFERENCE, ()))
    for name, rows in vectors.items():
        if name != REFERENCE and len(reference):
            lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(reference, axis=1)
            least = float(((np.array(rows) * reference).sum(1) / lengths).min())
            yield f"{name}: least cosine with {REFERENCE} {least:.7f} (1 − {1 - least:.1e})"


def main() -> None:
    """Measure in rounds, and print medians, spreads and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--clients", default="1,32")
    parser.add_argument("--engines", default="", help="names with commas between; all of them")
    parser.add_argument("--installed", type=Path, default=PEERS)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    asked = parser.parse_args()
    directory, log = resolve("minilm").directory, ROOT / "build" / "embeddings.log"
    log.parent.mkdir(exist_ok=True)
    texts = make_texts(directory, asked.texts)
    clients = [int(count) for count in asked.clients.split(",") if count]
    libraries, servers = find(asked, directory, log)
    if asked.engines:
        names = asked.engines.split(",")
        libraries = [library for library in libraries if library.name in names]
        servers = [server for server in servers if server.name in names]
    found: dict[tuple[str, str], list[float]] = {}
    vectors: dict[str, list[list[float]]] = {}
    try:
        for library in libraries:
            vectors[library.name] = library.embed(texts[:64], vectors=True)["vectors"]
        for server in servers:
            with server.serving(CASE) as port:
                vectors[f"{server.name} over HTTP"] = Client(port).embed(texts[:64])
        for number in range(asked.rounds):
            for case, name, speed in measure(libraries, servers, texts, clients):
                print(number + 1, case, name, f"{speed:.1f}", file=sys.stderr, flush=True)
                found.setdefault((case, name), []).append(speed)
    finally:
        for each in (*libraries, *servers):
            each.close()
    versions = ", ".join(dict.fromkeys(library.version for library in libraries))
    print(f"{processor()[0]}, {num_cores()[0]} threads, {asked.rounds} rounds, {len(texts)} texts")
    print(versions)
    for (case, name), speeds in found.items():
        spread = f"{min(speeds):.1f} to {max(speeds):.1f}"
        print(f"{case:10} {name:22} {statistics.median(speeds):7.1f} texts/s ({spread})", end="")
        ours = found[case, "octavo"]
        print(f", ours: {ratio(ours, speeds)}, must {MUST[name]}" if name in MUST else "")
    print("\n".join(cosines(vectors)))


if __name__ == "__main__":
    main()
