"""Logits processors that an engine is started with, and the arguments that requests give them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from octavo.api.outputs import RequestError
from octavo.client.errors import EngineStartError
from octavo.core.config import ConfigError
from octavo.core.snapshot import take_snapshot
from octavo.options.engine import read_arguments
from octavo.serving.server import Server
from tests.api.tiny import make_model
from tests.client import clients
from tests.server.make import Client, events, patient, until

HERE = "tests.engine.processor_classes"
BAN, FAULTY = f"{HERE}:Ban", f"{HERE}:Faulty"
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
PROMPTS = [{"prompt_token_ids": [3, 4, each, 6]} for each in range(5, 11)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(directory, logits_processors=[BAN, FAULTY], num_gpu_blocks_override=50) as made:
        yield made


def tokens(llm: LLM, **values: Any) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, SamplingParams(**{**GREEDY, **values}))
    assert not any(each.outputs[0].error for each in outputs)
    return [list(each.outputs[0].token_ids) for each in outputs]


@pytest.mark.parametrize(
    "name",
    [
        "no_such_module_anywhere:Ban",
        f"{HERE}:NoSuchClass",
        f"{HERE}:FUNCTION",
        f"{HERE}:NoMake",
        f"{HERE}:NeedsMore",
        f"{HERE}:NeedsArguments",
        "Ban",
    ],
)
def test_a_wrong_class_is_refused_before_the_model_loads(
    directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.engine.build.open_with_drafter", None)
    with pytest.raises(ConfigError, match=r"^logits_processors="):
        LLM(directory, logits_processors=[name])


@pytest.mark.parametrize("given", ["a:B", [7], ["a:B"] * 17, {"a:B": 1}])
def test_what_is_no_list_of_names_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^logits_processors="):
        read_arguments("m", {"logits_processors": given})


def test_arguments_reach_the_processor_of_their_own_request(llm: LLM, directory: Path) -> None:
    with LLM(directory, num_gpu_blocks_override=50) as plain:
        free = tokens(plain)
    assert tokens(llm) == free, "a processor that makes nothing changes nothing"
    ban = sorted({each for row in free for each in row[4:]})
    later = tokens(llm, extra_args={"ban": ban, "after": 4})
    assert [row[:4] for row in later] == [row[:4] for row in free]
    assert not {each for row in later for each in row[4:]}.intersection(ban)
    same = SamplingParams(**GREEDY, logits_processors=(by_hand(ban, 4),))
    outputs = llm.generate(PROMPTS, same)
    assert [list(each.outputs[0].token_ids) for each in outputs] == later


def by_hand(ban: list[int], after: int) -> Any:
    def processor(prompt: Any, output: Any, logits: Any) -> Any:
        if len(output) >= after:
            logits[ban] = -float("inf")
        return logits

    return processor


def test_a_preempted_request_keeps_its_processors(llm: LLM, directory: Path) -> None:
    values = {"extra_args": {"ban": [5, 6, 7], "after": 3}, "max_tokens": 40, "temperature": 1.0}
    options: dict[str, Any] = {"num_gpu_blocks_override": 9, "block_size": 16}
    with LLM(directory, logits_processors=[BAN], **options) as short:
        assert tokens(short, **values, seed=3) == tokens(llm, **values, seed=3)
        assert take_snapshot(short._model.core, 0.0).num_preemptions > 0


def test_a_processor_s_own_request_may_have_as_many_as_ever(llm: LLM) -> None:
    assert tokens(llm, logits_processors=(by_hand([5], 0),) * 16, extra_args={"ban": [6]})


def test_a_shape_forces_nothing_that_a_processor_may_forbid(llm: LLM) -> None:
    shape = StructuredOutputsParams(choice=("quick",))
    values = {**GREEDY, "structured_outputs": shape, "ignore_eos": False}
    (whole,) = llm.generate(PROMPTS[:1], SamplingParams(**values))
    assert whole.outputs[0].text == "quick"
    every: dict[str, Any] = {"extra_args": {"ban": list(range(2, 300))}}
    (none,) = llm.generate(PROMPTS[:1], SamplingParams(**values, **every))
    assert (none.outputs[0].finish_reason, none.outputs[0].text) == ("error", "")


@pytest.mark.parametrize("fault", ["validate", "make", "kind"])
def test_a_processor_that_fails_fails_its_request_alone(llm: LLM, fault: str) -> None:
    faulty: dict[str, Any] = {"extra_args": {"fault": fault}}
    good, bad = SamplingParams(**GREEDY), SamplingParams(**GREEDY, **faulty)
    outputs = llm.generate(PROMPTS[:3], [good, bad, good])
    assert [each.outputs[0].finish_reason for each in outputs] == ["length", "error", "length"]
    assert FAULTY in (outputs[1].outputs[0].error or "")


def test_without_processors_arguments_are_refused(directory: Path) -> None:
    with LLM(directory, num_gpu_blocks_override=50) as plain:
        given: dict[str, Any] = {"extra_args": {"ban": [1]}}
        with pytest.raises(RequestError) as caught:
            plain.generate("x", SamplingParams(**given))
        assert caught.value.param == "extra_args"
        assert tokens(plain, extra_args={}) == tokens(plain, extra_args=None)


BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8},
    "/inference/v1/generate": {"token_ids": [3, 4]},
}


def body_of(path: str, arguments: Any) -> dict[str, Any]:
    if path == "/inference/v1/generate":
        return {**BODIES[path], "sampling_params": {"max_tokens": 8, "extra_args": arguments}}
    return {**BODIES[path], "vllm_xargs": arguments}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("names", [[BAN], []])
def test_arguments_over_http(directory: Path, path: str, names: list[str]) -> None:
    llm = AsyncLLM(directory, logits_processors=names, num_gpu_blocks_override=50)
    name = "vllm_xargs" if path.startswith("/v1") else "sampling_params.extra_args"

    async def main() -> None:
        llm.attach()
        async with Client(Server(llm, patient())) as client:
            wrong = [{"ban": "x"}, {str(n): 1 for n in range(17)}, {"n": "x" * 5000}]
            for arguments in [*wrong, {"a": {"b": 1}}, {"a" * 65: 1}]:
                response = await client.post(path, json=body_of(path, arguments))
                assert response.status_code == 400, response.text
                error = response.json()["error"]
                assert "vllm_xargs" in error["message"] or "extra_args" in error["message"]
                if "param" in error:
                    assert error["param"].startswith(name)
            good = await client.post(path, json=body_of(path, {"ban": [5], "after": 2}))
            assert good.status_code == (200 if names else 400), good.text
            nothing: tuple[Any, ...] = ({}, None)
            for each in nothing:
                response = await client.post(path, json=body_of(path, each))
                assert response.status_code == 200, response.text
            await client.server.prompt_pool.close()

    try:
        asyncio.run(main())
    finally:
        llm.close()


def test_a_rendered_request_keeps_its_arguments(directory: Path) -> None:
    llm = AsyncLLM(directory, logits_processors=[BAN], num_gpu_blocks_override=50)

    async def main() -> None:
        llm.attach()
        async with Client(Server(llm, patient())) as client:
            body = {"prompt": "x", "temperature": 0, "vllm_xargs": {"ban": [5, 6], "after": 1}}
            (rendered,) = (await client.post("/v1/completions/render", json=body)).json()
            assert rendered["sampling_params"]["extra_args"] == body["vllm_xargs"]
            outer = {**rendered, "vllm_xargs": body["vllm_xargs"]}
            response = await client.post("/inference/v1/generate", json=outer)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "vllm_xargs")
            await client.server.prompt_pool.close()

    try:
        asyncio.run(main())
    finally:
        llm.close()


@pytest.mark.slow
def test_an_engine_in_a_process_makes_them_before_it_is_confined(directory: Path) -> None:
    """An engine that replaces it makes them again, and continues the same text."""
    options: dict[str, Any] = {"engine": "process", "num_gpu_blocks_override": 200}
    options["timing"] = clients.patient()
    llm = AsyncLLM(directory, logits_processors=[BAN], **options)

    async def main() -> None:
        llm.attach()
        async with Client(Server(llm, patient())) as client:
            fields: dict[str, Any] = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}
            fields["vllm_xargs"] = {"ban": [5, 6, 7, 8], "after": 5}
            whole = await client.complete(**fields)
            body = {"prompt": "The quick", "stream": True, **fields}
            inner: Any = llm._client

            def has_begun() -> bool:
                return any(each.record.entered_at for each in client.server.active.values())

            while not llm.engines[0].vitals.num_deaths:  # again if it ended before the kill
                asked = asyncio.ensure_future(client.post("/v1/completions", json=body))
                await until(lambda: asked.done() or has_begun())  # noqa: B023
                if not asked.done():
                    inner.engines[0].supervisor.run.process.popen.kill()
                    await until(lambda: bool(llm.engines[0].vitals.num_deaths))
                response = await asked
                text = "".join(c["text"] for e in events(response.text) for c in e["choices"])
                assert text == whole["choices"][0]["text"]
            await until(llm.is_well)
            for stream in (False, True):
                wrong = {**body, "stream": stream, "vllm_xargs": {"ban": 5}}
                response = await client.post("/v1/completions", json=wrong)
                assert (response.status_code, response.json()["error"]["param"]) == (
                    400,
                    "vllm_xargs",
                )
            await client.server.prompt_pool.close()

    try:
        asyncio.run(main())
    finally:
        llm.close()
    with pytest.raises((ConfigError, EngineStartError), match=r"^logits_processors="):
        AsyncLLM(directory, logits_processors=[f"{HERE}:NoMake"], engine="process")
