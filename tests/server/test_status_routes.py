"""Metrics, explanations, the admin socket and the OpenAPI document."""

from __future__ import annotations

import ast
import asyncio
import gc
import re
import textwrap
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from octavo.dialects.common.schema.sampling import CommonRequest
from octavo.options.server import ServerSettings
from octavo.server import routes
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.server.openapi import document
from octavo.server.ready_text import ready_text
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from octavo.serving.generation import Generation
from octavo.transport.auth import HEALTH
from tests.server.durable.make import Gate
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, Client, serving, until

SAMPLE = re.compile(r"^([a-z0-9_:]+)(?:\{([^}]*)\})? ([0-9.e+-]+|\+Inf)$")


def samples(text: str) -> dict[str, float]:
    """Parse an exposition, of which every line must be a comment or a sample."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            found[f"{match[1]}{{{match[2] or ''}}}"] = float(match[3])
    return found


def test_the_order_of_sums_is_reported(directory: Path) -> None:
    """Two servers whose reports agree give equal bits."""

    async def main() -> None:
        async with serving(directory) as client:
            version = (await client.get("/version")).json()
            assert version["instruction_set"] == "abacus"
            assert version["accumulation_order"] == "fma"
            answer = await client.complete(max_tokens=2, explain=True)
            assert answer["explain"]["accumulation_order"] == "fma"
            later = (await client.get(f"/v1/requests/{answer['id']}/explain")).json()
            assert later["accumulation_order"] == "fma"

    asyncio.run(main())


@pytest.mark.parametrize("names", ["octavo", "vllm"])
def test_metrics_count_what_happened(directory: Path, names: str) -> None:
    async def main() -> None:
        async with serving(directory, metrics_names=names) as client:
            await client.complete(max_tokens=4)
            await client.chat(max_tokens=3, stream=False)
            await client.complete(temperature=9)
            body = {"prompt": "x", "max_tokens": 4, "stream": True}
            await client.post("/v1/completions", json=body)
            response = await client.get("/metrics")
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            found = samples(response.text)
            base = 'model_name="tiny",engine="0"'
            assert found[f"{names}:generation_tokens_total{{{base}}}"] == 11
            assert found[f'{names}:request_success_total{{{base},finished_reason="length"}}'] == 3
            assert found[f"{names}:time_to_first_token_seconds_count{{{base}}}"] == 3
            assert found[f'{names}:e2e_request_latency_seconds_bucket{{{base},le="+Inf"}}'] == 3
            assert found[f"{names}:inter_token_latency_seconds_count{{{base}}}"] == 3 + 2 + 3
            assert found[f"{names}:request_time_per_output_token_seconds_count{{{base}}}"] == 3
            assert found[f"{names}:request_max_num_generation_tokens_sum{{{base}}}"] == 11
            assert found[f"{names}:iteration_tokens_total_count{{{base}}}"] == 11
            settings = 'block_size="4",cache_dtype="auto",enable_prefix_caching="True"'
            settings += ',kv_cache_max_concurrency="7.98",kv_cache_size_tokens="2044"'
            info = f'{base},{settings},num_gpu_blocks="512",num_gpu_blocks_override="None"'
            assert found[f"{names}:cache_config_info{{{info}}}"] == 1
            waiting = f"{names}:num_requests_waiting_by_reason{{{base},reason="
            assert (found[f'{waiting}"capacity"}}'], found[f'{waiting}"deferred"}}']) == (0, 0)
            assert found[f"{names}:num_requests_running{{{base}}}"] == 0
            assert found[f"{names}:kv_cache_usage_perc{{{base}}}"] == 0
            assert found[f"{names}:spec_decode_num_draft_tokens_total{{{base}}}"] == 0
            route = 'route="/v1/completions",status="400"'
            assert found[f"octavo:http_responses_total{{{base},{route}}}"] == 1
            assert "# TYPE octavo:http_responses_total counter" in response.text
            assert found["process_resident_memory_bytes{}"] > 10 << 20
            assert found["process_virtual_memory_bytes{}"] > 10 << 20
            assert found["process_max_fds{}"] >= found["process_open_fds{}"] >= 3
            assert found[f"octavo:engine_deaths_total{{{base}}}"] == 0
            assert found[f"octavo:engine_restarts_total{{{base}}}"] == 0
            assert found[f"octavo:engine_down_seconds_total{{{base}}}"] == 0
            assert found[f"octavo:request_held_seconds_count{{{base}}}"] == 0
            assert found[f"octavo:dropped_log_lines_total{{{base}}}"] == 0
            child = f"octavo:child_memory_bytes{{{base},process="
            assert found[f'{child}"engine"}}'] == 0  # of a test, in this process
            if next(Path("/proc/self/task").glob("*/children"), None):  # not every kernel has it
                assert found[f'{child}"prompt_worker"}}'] > 10 << 20
            assert 0 < found["process_cpu_seconds_total{}"] < 1e6
            assert time.time() - 1e6 < found["process_start_time_seconds{}"] <= time.time()
            assert "# TYPE process_cpu_seconds_total counter" in response.text

    asyncio.run(main())


def test_openmetrics_names_the_traces_of_requests(directory: Path) -> None:
    """A trace is named if its client records it; ids that clients choose are not shown."""
    trace, other = "4bf92f3577b34da6a3ce929d0e0e4736", "5bf92f3577b34da6a3ce929d0e0e4736"
    accept = {"accept": "application/openmetrics-text; version=1.0.0, text/plain; q=0.5"}

    async def main() -> None:
        async with serving(directory) as client:
            body = {"prompt": "x", "max_tokens": 2}
            headers = {"x-request-id": "chosen", "traceparent": f"00-{other}-00f067aa0ba902b7-00"}
            await client.post("/v1/completions", json=body, headers=headers)
            text = (await client.get("/metrics", headers=accept)).text
            assert " # {" not in text
            assert "chosen" not in text
            assert other not in text
            headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
            await client.post("/v1/completions", json=body, headers=headers)
            body["stream"] = True
            await client.post("/v1/completions", json=body, headers=headers)
            response = await client.get("/metrics", headers=accept)
            assert response.headers["content-type"].startswith("application/openmetrics-text")
            assert response.text.endswith("# EOF\n")
            for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
                lines = response.text.splitlines()
                shown = [line for line in lines if line.startswith(f"octavo:{name}_seconds_bucket")]
                assert any(f'# {{trace_id="{trace}",request_id="' in line for line in shown), name
            assert "trace_id" not in (await client.get("/metrics")).text

    asyncio.run(main())


def test_tokens_are_counted_as_they_come_and_each_continuation_alone(directory: Path) -> None:
    may_step = threading.Semaphore(3)  # the first step gives a token to one continuation

    async def counts(client: Client) -> tuple[float, float]:
        found = samples((await client.get("/metrics")).text)
        base = '{model_name="tiny",engine="0"}'
        tokens = found[f"octavo:generation_tokens_total{base}"]
        return tokens, found[f"octavo:inter_token_latency_seconds_count{base}"]

    async def main() -> None:
        engine = FakeEngine(directory, runner=ChainRunner(may_step.acquire))
        async with serving(directory, engine) as client:
            asked = asyncio.ensure_future(client.complete(max_tokens=9, n=2, temperature=0.8))
            while (await counts(client))[0] < 4:
                await asyncio.sleep(0.002)
            tokens, intervals = await counts(client)
            assert intervals == tokens - 2, "of two continuations"
            assert not asked.done()
            may_step.release(1000)
            await asked
            assert await counts(client) == (18, 16)
            text = (await client.get("/metrics")).text
            assert 'request_generation_tokens_count{model_name="tiny",engine="0"} 2.0' in text
            assert 'num_generation_tokens_sum{model_name="tiny",engine="0"} 9.0' in text

    asyncio.run(main())


def test_unknown_paths_are_not_labels(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            for index in range(20):
                await client.get(f"/made/up/{index}")
            text = (await client.get("/metrics")).text
            assert "made" not in text
            assert 'route="other",status="404"} 20.0' in text

    asyncio.run(main())


def test_a_stream_that_failed_is_not_explained_as_finished(directory: Path) -> None:
    """Neither its record nor its error keeps it in memory until a collection."""
    may_step = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(may_step.wait))
    made: list[weakref.ref[Generation]] = []

    async def main() -> None:
        async with serving(directory, engine, status_seconds=0.001) as client:
            begin = Generation.__init__

            def noting(self: Generation, *arguments: Any) -> None:
                begin(self, *arguments)
                made.append(weakref.ref(self))

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Generation, "__init__", noting)
                engine.runner.poisoned.add("bad-")
                body = {"prompt": "x", "stream": True, "explain": True}
                named = {"x-request-id": "bad"}
                post = client.post("/v1/completions", json=body, headers=named)
                asked = asyncio.create_task(post)
                await until(lambda: bool(made) and is_open(made[0]()))
                may_step.set()
                response = await asked
            assert response.status_code == 200
            assert '"code":"engine_error"' in response.text
            explanation = (await client.get("/v1/requests/bad/explain")).json()
            assert explanation["outcome"] == "failed"
            assert made[0]() is None

    def is_open(generation: Generation | None) -> bool:
        return generation is not None and generation._stream.is_open

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_request_can_be_explained(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            answer = await client.complete(max_tokens=6, explain=True, prompt=[5] * 200)
            explanation = answer["explain"]
            parts = [part["what"] for part in explanation["timeline"]]
            assert parts[:4] == ["template", "tokenize", "admission", "queue"]
            chunks = [part for part in explanation["timeline"] if part["what"] == "prefill"]
            assert [(c["from_token"], c["to_token"]) for c in chunks] == [(0, 128), (128, 200)]
            assert parts[-1] == "decode"
            starts = [part["at_ms"] for part in explanation["timeline"]]
            assert starts == sorted(starts)
            assert explanation["parameters"]["max_tokens"] == 6
            assert explanation["parameters"]["temperature"] == 1.0
            assert explanation["completion_tokens"] == 6
            assert explanation["drafted_tokens"] == explanation["accepted_draft_tokens"] == 0
            assert re.match(
                r"^[\d.]+ of [\d.]+ ms \(\d+ %\) went into .+; .+\.$", explanation["cause"]
            )
            path = f"/v1/requests/{answer['id']}/explain"
            later = (await client.get(path)).json()
            assert later["outcome"] == "finished"
            assert later["cause"]
            assert later["parameters"] == explanation["parameters"]
            record = client.server.recent.find(answer["id"].removeprefix("cmpl-"), "")
            assert record is not None
            assert record.sampling is None, "its lists may be long, and many records are kept"
            body = {"prompt": "x", "max_tokens": 2, "stream": True, "explain": True}
            streamed = await client.post("/v1/completions", json=body)
            assert '"explain":{' in streamed.text
            assert (await client.get("/v1/requests/none/explain")).status_code == 404
        async with serving(directory, num_explained=1) as client:
            first = await client.complete(max_tokens=1)
            await client.complete(max_tokens=1)
            gone = await client.get(f"/v1/requests/{first['id']}/explain")
            assert gone.status_code == 404, "only the last one is kept"

    asyncio.run(main())


def test_a_request_behind_a_full_engine_names_the_slots(directory: Path) -> None:
    """The explanation names the slots, and the setting that adds some."""
    gates = [Gate(0) for _ in range(5)]
    engine = FakeEngine(directory, max_num_seqs=1)
    inline: Any = engine._client
    sequences = engine.core.scheduler.sequences

    async def explained(client: Client, gate: Gate) -> Any:
        """Return the explanation of a request that waits for longer than it was prepared."""
        engine.runner.before_step = gate.wait
        first = asyncio.ensure_future(client.complete(max_tokens=30))
        await until(lambda: gate.num_arrived == 1)
        began = time.monotonic()
        asked = asyncio.ensure_future(client.complete(max_tokens=1, explain=True))
        await until(lambda: bool(inline._inbox))
        gate.open(1)
        await until(lambda: len(sequences) == 2)  # from then on it waits for a slot
        await asyncio.sleep(0.1 + 3 * (time.monotonic() - began))
        gate.open()
        second = await asked
        await first
        await until(lambda: not sequences)
        return second["explain"]

    async def main() -> None:
        async with serving(directory, engine, max_running_sequences=8) as client:
            for gate in gates:  # a pause of its only step may be longer than its wait
                explanation = await explained(client, gate)
                (queue,) = [p for p in explanation["timeline"] if p["what"] == "queue"]
                assert queue["reasons_ms"]["slots"] > 0
                if "max_num_seqs" in explanation["cause"]:
                    return
            raise AssertionError(explanation["cause"])

    asyncio.run(main())


def test_an_aborted_answer_is_not_a_complete_one_for_ollamas_clients(directory: Path) -> None:
    gate = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(LIMIT)))

    async def main() -> None:
        async with serving(directory, engine) as client:
            admin = Client(client.server, ADMIN_ROUTES, checks_access=False)
            body = {"model": "tiny", "prompt": "x", "stream": False}
            headers = {"x-request-id": "long"}
            asked = asyncio.ensure_future(client.post("/api/generate", json=body, headers=headers))
            await until(lambda: bool(engine.core.scheduler.running) or asked.done())
            await admin.post("/abort_requests", json={"request_ids": ["long"]})
            gate.set()
            assert (await asked).json()["done_reason"] == "abort"

    asyncio.run(main())


def test_the_routes_for_operators(directory: Path, caplog: Any) -> None:
    caplog.set_level("DEBUG", "octavo")  # restores the level that /log_level sets
    gate = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(LIMIT)))

    async def main() -> None:
        async with serving(directory, engine) as client:
            admin = Client(client.server, ADMIN_ROUTES, checks_access=False)
            body = {"prompt": "x", "max_tokens": 50}
            headers = {"x-request-id": "long"}
            asked = asyncio.ensure_future(
                client.post("/v1/completions", json=body, headers=headers)
            )
            await until(lambda: bool(engine.core.scheduler.running))
            (active,) = (await admin.get("/in_flight")).json()["in_flight"]
            assert active["request_id"] == "long"
            assert active["is_waiting"] is False
            unknown = await admin.post("/abort_requests", json={"request_ids": ["other"]})
            assert unknown.status_code == 404
            aborted = await admin.post("/abort_requests", json={"request_ids": ["long", "other"]})
            assert aborted.json() == {"aborted": 1, "not_found": ["other"]}
            gate.set()
            assert (await asked).json()["choices"][0]["finish_reason"] == "abort"
            assert (await admin.post("/reset_prefix_cache")).json() == {"success": True}
            assert (await admin.post("/pause")).json() == {"paused": True}
            assert (await admin.post("/resume")).json() == {"paused": False, "draining": False}
            assert (await admin.post("/drain")).json()["draining"] is True
            assert (await client.get("/health")).status_code == 503
            assert (await admin.post("/resume")).status_code == 200
            assert (await client.get("/health")).status_code == 200
            level = await admin.post("/log_level", json={"level": "loud"})
            assert level.status_code == 400
            assert (await admin.post("/log_level", json={"level": "info"})).status_code == 200
            other = (await admin.get("/")).json()["error"]["message"]
            assert all(route.path in other for route in ADMIN_ROUTES)
            diagnosis = (await admin.get("/diagnosis")).json()
            assert diagnosis["verdict"]
            assert diagnosis["admission"]["admitted_sequences"] == 0
            assert diagnosis["evidence"]["steps"] > 0
            for route in ADMIN_ROUTES:  # clients cannot reach any of them
                if "lora" not in route.path:  # those have a switch for clients
                    assert (await client.request(route.method, route.path)).status_code == 404
            await admin.aclose()

    asyncio.run(main())


def test_prompts_are_not_logged(directory: Path, caplog: Any) -> None:
    caplog.set_level("DEBUG")

    async def main() -> None:
        async with serving(directory, api_keys=("the-very-secret",)) as client:
            client.headers["authorization"] = "Bearer the-very-secret"
            await client.complete(prompt="the words of a client", max_tokens=1)
            await client.chat("the words of a client", max_tokens=1, temperature=9)
            await client.get("/a%0d%0aforged: line")

    asyncio.run(main())
    ours = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("octavo"))
    assert "/v1/completions" in ours
    assert "words of a client" not in ours
    assert "very-secret" not in ours
    assert all("\r" not in record.getMessage() for record in caplog.records)


def test_the_document_names_every_route_and_field(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = document(ROUTES, DEFAULT_DIALECT)
    assert whole["openapi"].startswith("3.1")
    assert set(whole["paths"]) == {route.path for route in ROUTES}
    fields = whole["components"]["schemas"]["ChatRequest"]["properties"]
    assert set(CommonRequest.__struct_fields__) < set(fields)
    numbers = [name for name, kind in fields.items() if "integer" in str(kind)]
    for name in numbers:
        assert "maximum" in str(fields[name]), f"{name} has no bound"

    async def main() -> None:
        async with serving(directory) as client:
            assert (await client.get("/openapi.json")).json() == whole
            monkeypatch.setattr(routes, "document", None)  # building it would hold the event loop
            assert (await client.get("/openapi.json")).json() == whole
            page = await client.get("/docs")
            assert "<script" not in page.text
            assert "http" not in page.text.replace("/httptools", "")
            assert page.headers["content-security-policy"].startswith("default-src 'none'")
            assert all(route.path in page.text for route in ROUTES)
            for path in ("/v1/models/", "/health/"):
                assert (await client.get(path)).status_code == 200
            assert (await client.head("/health")).status_code == 200
            wrong = await client.put("/v1/completions")
            assert wrong.status_code == 405
            assert wrong.headers["allow"] == "POST"

    asyncio.run(main())


def test_the_ready_text_can_be_pasted(directory: Path) -> None:
    async def main() -> str:
        async with serving(directory) as client:
            return ready_text(client.server.config, 8000, "tiny")

    text = asyncio.run(main())
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in text
    assert "base_url='http://127.0.0.1:8000/v1'" in text


@pytest.mark.parametrize(
    ("tasks", "route", "call"),
    [
        (("generate", "embed"), "/v1/chat/completions", "chat.completions"),
        (("embed",), "/v1/embeddings", "embeddings.create"),
        (("classify", "score"), "/score", ""),
        (("classify",), "/classify", ""),
    ],
)
def test_the_ready_text_is_about_what_the_model_serves(
    tasks: tuple[str, ...], route: str, call: str
) -> None:
    text = ready_text(ServerSettings(), 8000, "tiny", tasks)
    assert f"curl http://127.0.0.1:8000{route} " in text
    assert ("chat" in text) == ("generate" in tasks)
    assert ("OpenAI(" in text) == bool(call)
    assert call in text


@pytest.mark.parametrize("keys", [(), ("the-very-secret",)])
@pytest.mark.parametrize("uds", [None, Path("/run/x")])
def test_the_pasted_program_imports_what_it_uses(keys: tuple[str, ...], uds: Path | None) -> None:
    text = ready_text(ServerSettings(api_keys=keys, uds=uds), 8000, "tiny")
    program = ast.parse(textwrap.dedent(text.split("\n\n", maxsplit=2)[2]))
    names = [node for node in ast.walk(program) if isinstance(node, ast.Name)]
    known = {each.id for each in names if isinstance(each.ctx, ast.Store)} | {"print"}
    for node in ast.walk(program):
        if isinstance(node, ast.Import | ast.ImportFrom):
            known.update(alias.name for alias in node.names)
    assert {each.id for each in names} <= known
    assert ("os" in known, "httpx" in known) == (bool(keys), uds is not None)


@pytest.mark.parametrize("public_metrics", [True, False])
@pytest.mark.parametrize("keys", [(), ("the-very-secret",)])
def test_the_document_asks_for_a_key_only_if_the_server_does(
    directory: Path, keys: tuple[str, ...], public_metrics: bool
) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"public_metrics": public_metrics, "max_live_listeners": 0}
        async with serving(directory, api_keys=keys, **options) as client:
            headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}
            whole = (await client.get("/openapi.json", headers=headers)).json()
            assert ("security" in whole) == bool(keys)
            assert ("securitySchemes" in whole["components"]) == bool(keys)
            needs = {
                (path, method)
                for path, methods in whole["paths"].items()
                for method, operation in methods.items()
                if operation.get("security", whole.get("security", []))
            }
            for path, methods in whole["paths"].items():
                for method in methods:
                    answer = await client.request(method, path.replace("{id}", "x"))
                    is_refused = answer.status_code == 401
                    assert is_refused == ((path, method) in needs), (method, path)

    asyncio.run(main())


def test_the_document_lists_every_status_and_the_need_of_a_key() -> None:
    """Generated clients handle only the statuses that the document lists."""
    paths = document(ROUTES, DEFAULT_DIALECT)["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert {"401", "405", "408", "431", "503", "504"} <= operation["responses"].keys()
            is_open = path in HEALTH or (path, method) == ("/", "get")
            assert ("security" in operation) == is_open
    stream = paths["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    schema = stream["text/event-stream"]["schema"]["properties"]["data"]
    assert {"const": "[DONE]"} in schema["anyOf"]
