"""Widely used clients, each as it is published, against real server processes.

`make test-clients` installs each into an environment of its own and runs this file; `make test`
does not. A client's program checks its expectations and fails if one does not hold.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from octavo import LLM, PoolingParams
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.server.openapi import document
from octavo.server.routes import DEFAULT_DIALECT
from tests.api.tiny import make_tokenizer_files
from tests.clients.relay import relayed

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / "build" / "clients"
PROTO = ROOT / "octavo" / "dialects" / "grpc" / "octavo.proto"
KEY = "a-key-of-the-tests"
HEADERS = {"authorization": f"Bearer {KEY}"}
SECONDS = 300


@contextmanager
def serving(directory: Path, program: str = "server", **options: Any) -> Iterator[str]:
    """Run a server for as long as the block lasts; it must end in order."""
    directory.mkdir()
    given = json.dumps({"api_keys": [KEY], **options})
    command = [sys.executable, "-m", f"tests.clients.{program}", str(directory), given]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"the server has not started: {line!r}"
        yield found[0]
    finally:
        process.terminate()
        code = process.wait(60)
        process.stdout.close()
    assert code == 0


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with room for every client."""
    with serving(tmp_path_factory.mktemp("open") / "model") as address:
        yield address


@pytest.fixture(scope="session")
def full_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A full server: one request runs in a paused engine, another waits."""
    directory = tmp_path_factory.mktemp("full")
    admin = directory / "admin"
    options: dict[str, Any] = {
        "max_running_sequences": 1,
        "max_waiting_requests": 1,
        "admin_socket": str(admin),
    }
    with serving(directory / "model", **options) as address:
        operator = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(admin)), base_url="http://localhost"
        )
        operator.post("/pause").raise_for_status()

        def occupy() -> None:  # until the engine is resumed, however long the tests take
            body = {"prompt": "x", "max_tokens": 1}
            httpx.post(f"{address}/v1/completions", json=body, headers=HEADERS, timeout=None)

        threads = []
        for num_inside in (1, 2):
            threads.append(threading.Thread(target=occupy, daemon=True))
            threads[-1].start()
            while len(operator.get("/in_flight").json()["in_flight"]) < num_inside:
                pass
        yield address
        operator.post("/resume").raise_for_status()
        for thread in threads:
            thread.join()
        operator.close()


@pytest.fixture(scope="session")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server with a journal, batches, gRPC and an operator's socket, and their directory."""
    directory = tmp_path_factory.mktemp("keeping")
    options: dict[str, Any] = {
        "admin_socket": str(directory / "admin"),
        "journal": str(directory / "journal"),
        "batch_dir": str(directory / "batches"),
        "grpc_port": 0,
    }
    with serving(directory / "model", **options) as address:
        yield address, directory


@pytest.fixture(scope="session")
def agent_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model thinks, calls tools, and answers."""
    with serving(tmp_path_factory.mktemp("agent") / "model", "agent_server") as address:
        yield address


@pytest.fixture(scope="session")
def shape_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model writes at random what a grammar allows."""
    directory = tmp_path_factory.mktemp("shapes") / "model"
    with serving(directory, "shapes.server", reasoning_parser="none") as address:
        yield address


# Clients contact only the servers of this file.
OFFLINE = ("HF_HUB_OFFLINE=1", "HF_DATASETS_OFFLINE=1", "LITELLM_LOCAL_MODEL_COST_MAP=True")


def in_environment(name: str, *command: str, directory: Path = HERE) -> str:
    """Run a client's program, which must succeed, and return its output."""
    assert (ENVIRONMENTS / name).is_dir(), f"{name} is not installed: make test-clients"
    done = subprocess.run(
        ["env", *OFFLINE, f"OPENAI_API_KEY={KEY}", *command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=directory,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


PYTHON = (
    *("cohere", "huggingface-hub", "langchain-openai", "litellm", "lm-eval", "mistralai", "ollama"),
)


@pytest.mark.parametrize("name", PYTHON)
def test_python(name: str, address: str, full_address: str, tmp_path: Path) -> None:
    program = str(HERE / f"use_{name.replace('-', '_')}.py")
    python = str(ENVIRONMENTS / name / "bin" / "python")
    tokenizer = str(make_tokenizer_files(tmp_path))
    said = in_environment(name, python, program, address, full_address, KEY, tokenizer)
    assert "all is well" in said


@pytest.mark.parametrize("name", ["openai", "grpc"])
def test_python_with_what_is_kept(name: str, keeping: tuple[str, Path]) -> None:
    address, directory = keeping
    python = str(ENVIRONMENTS / name / "bin" / "python")
    command = (python, str(HERE / f"use_{name}.py"), address, KEY, str(directory), str(PROTO))
    assert "all is well" in in_environment(name, *command)


@pytest.mark.parametrize("name", ["openai", "ai-sdk", "ollama"])
def test_node(name: str, address: str, full_address: str) -> None:
    """The program is copied to where its packages are: node looks for them beside it."""
    program = ENVIRONMENTS / "node" / f"use_{name.replace('-', '_')}.mjs"
    program.write_text((HERE / program.name).read_text("utf-8"), "utf-8")
    said = in_environment("node", "node", str(program), address, full_address, KEY)
    assert "all is well" in said


AGENTS = ("anthropic", "cohere", "langchain-openai", "ollama", "openai-agents", "pydantic-ai")


@pytest.mark.parametrize("name", AGENTS)
def test_python_agents(name: str, agent_address: str) -> None:
    program = str(HERE / "agents" / f"agent_{name.replace('-', '_')}.py")
    python = str(ENVIRONMENTS / name / "bin" / "python")
    assert "all is well" in in_environment(name, python, program, agent_address, KEY)


@pytest.mark.parametrize("name", ["openai", "ai-sdk", "ollama"])
def test_node_agents(name: str, agent_address: str) -> None:
    program = ENVIRONMENTS / "node" / f"agent_{name.replace('-', '_')}.mjs"
    program.write_text((HERE / program.name).read_text("utf-8"), "utf-8")
    assert "all is well" in in_environment("node", "node", str(program), agent_address, KEY)


@pytest.mark.parametrize("name", ["huggingface-hub", "langchain-openai", "pydantic-ai"])
def test_python_shapes(name: str, shape_address: str) -> None:
    program = str(HERE / "shapes" / f"shape_{name.replace('-', '_')}.py")
    python = str(ENVIRONMENTS / name / "bin" / "python")
    assert "all is well" in in_environment(name, python, program, shape_address, KEY)


@pytest.mark.parametrize("name", ["openai", "ai-sdk"])
def test_node_shapes(name: str, shape_address: str) -> None:
    program = ENVIRONMENTS / "node" / f"shape_{name.replace('-', '_')}.mjs"
    program.write_text((HERE / "shapes" / program.name).read_text("utf-8"), "utf-8")
    assert "all is well" in in_environment("node", "node", str(program), shape_address, KEY)


def test_sentence_transformers(tmp_path: Path) -> None:
    """Models that the library saves give the vectors and scores that it gives."""
    name = "sentence-transformers"
    python = str(ENVIRONMENTS / name / "bin" / "python")
    (tmp_path / "tokenizer").mkdir()
    special = ("<s>", "<pad>", "</s>")
    tokenizer = str(make_tokenizer_files(tmp_path / "tokenizer", special=special))
    program = str(HERE / "make_sentence_models.py")
    lines = in_environment(name, python, program, str(tmp_path), tokenizer).splitlines()
    made = json.loads(lines[-1])
    for model, (plain, asked) in made["embedded"].items():
        with LLM(tmp_path / model, dtype="float32", num_gpu_blocks_override=90) as llm:
            for prompt, expected in (("", plain), ("query", asked)):
                outputs = llm.embed(made["texts"], PoolingParams(prompt_name=prompt))
                found = [output.outputs.embedding for output in outputs]
                assert np.array(found) == pytest.approx(np.array(expected), abs=1e-5), model
    for model, expected in made["ranked"].items():
        with LLM(tmp_path / model, dtype="float32", num_gpu_blocks_override=90) as llm:
            scores = [each.outputs.score for each in llm.score(made["query"], made["texts"])]
            assert scores == pytest.approx(expected, abs=1e-5), model


def test_opentelemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ASGI middleware of OpenTelemetry sees the client's trace and every chunk."""
    (packages,) = (ENVIRONMENTS / "opentelemetry").glob("lib/python*/site-packages")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    names = ["tests.clients.trace_middleware:trace"]
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {**HEADERS, "traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    body = {"prompt": "The quick", "max_tokens": 8, "stream": True, "ignore_eos": True}
    with serving(tmp_path / "model", middleware=names) as address:
        answer = httpx.post(
            f"{address}/v1/completions", json=body, headers=headers, timeout=SECONDS
        )
    assert answer.text.endswith("data: [DONE]\n\n")
    spans = [json.loads(line) for line in (tmp_path / "spans").read_text("utf-8").splitlines()]
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{trace_id}"}
    sent = [span for span in spans if span["name"].endswith("http send")]
    assert len(sent) > 3, "the start, several chunks and the end"
    (whole,) = [span for span in spans if span["kind"] == "SpanKind.SERVER"]
    assert 200 in whole["attributes"].values()


def schemathesis(schema: str, directory: Path, *more: str) -> None:
    """Send requests that fit a document and requests that do not: no answer may contradict it."""
    settings = directory / "schemathesis.toml"
    hooks = json.dumps(str(HERE / "schemathesis_hooks.py"))
    text = (HERE / "schemathesis.toml").read_text("utf-8")
    settings.write_text(f"hooks = {hooks}\n{text}", "utf-8")
    program = str(ENVIRONMENTS / "schemathesis" / "bin" / "schemathesis")
    for mode in ("positive", "negative"):
        command = [program, "--config-file", str(settings), "run", schema, "--mode", mode]
        command += ["--max-examples", "30", "--seed", "1", "--no-color", "--request-timeout", "60"]
        command += ["--phases", "examples,coverage,fuzzing", *more]
        assert " passed" in in_environment("schemathesis", *command, directory=directory)


def failed(address: str) -> list[str]:
    """Return the lines of the metrics that count failures of the server."""
    text = httpx.get(f"{address}/metrics", headers=HEADERS).text
    assert 'status="200"' in text
    return re.findall(r'octavo:http_responses_total\{.*status="500"\} \S+', text)


def test_schemathesis(tmp_path: Path) -> None:
    """Every route, but for files and batches, which are not kept, and the stream without an end."""
    # Short answers: 128 of them at full length are a minute's work for the reference backend.
    with serving(tmp_path / "model", max_output_tokens=2, max_live_listeners=0) as address:
        credentials = ("--header", f"Authorization: Bearer {KEY}")
        schemathesis(f"{address}/openapi.json", tmp_path, *credentials)
        assert not failed(address)


@pytest.mark.parametrize("num_classes", [1, 3])
def test_schemathesis_with_a_classifier(num_classes: int, tmp_path: Path) -> None:
    """The routes that give classes, and those that give scores of pairs."""
    with serving(tmp_path / "model", num_classes=num_classes) as address:
        credentials = ("--header", f"Authorization: Bearer {KEY}")
        asked = ("--include-path-regex", "^(/v1|/v2)?/(classify|score|rerank|pooling)$")
        schemathesis(f"{address}/openapi.json", tmp_path, *credentials, *asked)
        served = "score" if num_classes == 1 else "classify"
        counted = httpx.get(f"{address}/metrics", headers=HEADERS).text
        assert re.search(rf'route="/{served}",status="200"', counted), "it was served"
        assert not failed(address)


def test_schemathesis_with_what_is_kept(tmp_path: Path) -> None:
    """Files, batches and streams where the server keeps them, and the operators' routes."""
    operators = tmp_path / "operators.json"
    operators.write_text(json.dumps(document(ADMIN_ROUTES, DEFAULT_DIALECT)), "utf-8")
    options: dict[str, Any] = {
        "admin_socket": str(tmp_path / "admin"),
        "journal": str(tmp_path / "journal"),
        "batch_dir": str(tmp_path / "batches"),
    }
    with serving(tmp_path / "model", max_output_tokens=2, **options) as address:
        credentials = ("--header", f"Authorization: Bearer {KEY}")
        kept = ("--include-path-regex", "^/v1/(files|batches|responses|streams|requests)")
        schemathesis(f"{address}/openapi.json", tmp_path, *credentials, *kept)
        with relayed(tmp_path / "admin") as port:
            schemathesis(str(operators), tmp_path, "--url", port)
        assert not failed(address)
