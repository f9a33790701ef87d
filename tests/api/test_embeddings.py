"""Embeddings equal the reference's, whatever the chunks, the cache and the batch are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import LlamaModel

from octavo import LLM, AsyncLLM, PoolingParams, SamplingParams
from octavo.api.outputs import RequestError, RequestOutput
from octavo.api.pooling.results import embedded
from octavo.api.pooling.tasks import Wanted
from octavo.api.pooling.vectors import of_length_one
from octavo.core.pooling import Pooling, PoolingKind
from tests.api.tiny import TEXTS, make_model, requests_of

PROMPTS = [*TEXTS, "x", TEXTS[0] + TEXTS[1]]
NUM_BLOCKS = 200
ROWS = PoolingParams(use_activation=False)
POOLINGS: tuple[PoolingKind, ...] = ("last", "mean", "cls")  # of one vector


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def make_llm(directory: Path, tokens: int, num_blocks: int = NUM_BLOCKS) -> LLM:
    return LLM(
        str(directory),
        block_size=4,
        num_gpu_blocks_override=num_blocks,
        max_num_batched_tokens=tokens,
    )


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return make_llm(directory, 256)


@pytest.fixture(scope="module")
def expected(directory: Path, llm: LLM) -> dict[str, list[Any]]:
    """Return the reference's pooled states of each prompt."""
    reference = LlamaModel.from_pretrained(directory, dtype=torch.float32)
    found: dict[str, list[Any]] = {name: [] for name in POOLINGS}
    for prompt in PROMPTS:
        ids = llm.get_tokenizer().encode(prompt)
        with torch.no_grad():
            states: Any = reference(torch.tensor([ids])).last_hidden_state[0].numpy()
        found["last"].append(states[-1])
        found["mean"].append(states.astype(np.float64).mean(0))
        found["cls"].append(states[0])
    return found


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_reference_agrees(
    llm: LLM, expected: dict[str, list[Any]], pooling: PoolingKind
) -> None:
    encoded = llm.encode(PROMPTS, PoolingParams(pooling=pooling), use_tqdm=False)
    embedded = llm.embed(PROMPTS, PoolingParams(pooling=pooling), use_tqdm=False)
    for raw, unit, states in zip(encoded, embedded, expected[pooling], strict=True):
        scale = np.abs(states).max()
        np.testing.assert_allclose(raw.outputs.data, states, rtol=0, atol=2e-5 * scale)
        direction = states / np.linalg.norm(states)
        np.testing.assert_allclose(unit.outputs.embedding, direction, rtol=0, atol=2e-5)
        assert np.linalg.norm(unit.outputs.embedding) == pytest.approx(1.0)
        assert raw.finished
        assert raw.prompt_token_ids == unit.prompt_token_ids
    (plain,) = llm.embed(PROMPTS[0], PoolingParams(pooling=pooling, use_activation=False))
    assert plain.outputs.embedding == encoded[0].outputs.data
    if pooling == "last":
        assert llm.embed(PROMPTS)[0].outputs == embedded[0].outputs


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("tokens", "num_blocks"), [(7, NUM_BLOCKS), (16, 40)])
def test_no_bit_depends_on_chunks_or_room(
    directory: Path, llm: LLM, pooling: PoolingKind, tokens: int, num_blocks: int
) -> None:
    """The second engine has too few blocks for all prompts at once."""
    whole = [output.outputs for output in llm.encode(PROMPTS, PoolingParams(pooling=pooling))]
    other = make_llm(directory, tokens, num_blocks)
    assert [
        output.outputs for output in other.encode(PROMPTS, PoolingParams(pooling=pooling))
    ] == whole
    alone = [other.encode(prompt, PoolingParams(pooling=pooling))[0].outputs for prompt in PROMPTS]
    assert alone == whole


@pytest.mark.parametrize("pooling", POOLINGS)
def test_only_a_last_state_reads_the_cache(directory: Path, pooling: PoolingKind) -> None:
    llm = make_llm(directory, 256)
    (first,) = llm.encode(PROMPTS[0], PoolingParams(pooling=pooling))
    (again,) = llm.encode(PROMPTS[0], PoolingParams(pooling=pooling))
    (other,) = llm.generate(PROMPTS[0], SamplingParams(max_tokens=1))
    assert again.outputs == first.outputs
    assert first.num_cached_tokens == 0
    assert bool(again.num_cached_tokens) == (pooling == "last")
    assert other.num_cached_tokens  # others read what it has computed


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_state_is_the_prompt_s_however_much_is_generated(
    llm: LLM, pooling: PoolingKind
) -> None:
    wanted = Pooling(pooling)
    asked = SamplingParams(max_tokens=9, ignore_eos=True, temperature=0.0, pooling=wanted)
    encoded = llm.encode(PROMPTS, PoolingParams(pooling=pooling))
    for output, expected in zip(llm.generate(PROMPTS, asked), encoded, strict=True):
        assert len(output.outputs[0].token_ids) == 9
        assert list(output.hidden_state or ()) == expected.outputs.data


@pytest.mark.parametrize("tokens", [256, 7])
def test_all_states_come_in_order_however_the_prompt_is_cut(
    directory: Path, llm: LLM, tokens: int
) -> None:
    other = make_llm(directory, tokens)
    for pooling, place in (("cls", slice(0, 1)), ("last", slice(-1, None)), ("mean", slice(None))):
        for one, all_states in zip(
            llm.encode(PROMPTS, PoolingParams(pooling=cast("PoolingKind", pooling))),
            other.encode(PROMPTS, ROWS, pooling_task="token_embed"),
            strict=True,
        ):
            states = np.array(all_states.outputs.data)
            chosen = states[place].mean(0, dtype=np.float64)
            np.testing.assert_allclose(one.outputs.data, chosen, rtol=1e-6, atol=1e-6)


def test_only_the_first_continuation_pools_the_prompt(llm: LLM) -> None:
    asked = SamplingParams(n=3, seed=5, max_tokens=2, pooling=Pooling("mean"))
    requests = requests_of(llm, "A day in", asked)
    assert [request.reads_cache for request in requests] == [False, True, True]
    (output,) = llm.generate("A day in", asked)
    (expected,) = llm.encode("A day in", PoolingParams(pooling="mean"))
    assert list(output.hidden_state or ()) == expected.outputs.data


def test_the_last_state_is_what_the_head_reads(llm: LLM, directory: Path) -> None:
    """The product of the state and the head is the logits: its maximum is greedy's first token."""
    with safe_open(str(directory / "model.safetensors"), "numpy") as file:
        head = file.get_tensor("lm_head.weight")
    texts = llm.generate(PROMPTS, SamplingParams(max_tokens=1, temperature=0.0))
    for text, output in zip(texts, llm.encode(PROMPTS), strict=True):
        logits = head @ np.array(output.outputs.data, np.float32)
        assert [int(logits.argmax())] == text.outputs[0].token_ids


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_prompt_as_long_as_the_model_can(directory: Path, pooling: PoolingKind) -> None:
    """No token follows the prompt, so that it may fill the whole context."""
    ids = [index % 50 + 3 for index in range(128)]
    whole = make_llm(directory, 256).encode([ids, ids[:127]], PoolingParams(pooling=pooling))
    chunked = make_llm(directory, 7, num_blocks=33).encode(
        [ids, ids[:127]], PoolingParams(pooling=pooling)
    )
    assert [output.outputs for output in chunked] == [output.outputs for output in whole]
    reference = LlamaModel.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        states: Any = reference(torch.tensor([ids])).last_hidden_state[0].numpy()
    expected = {"last": states[-1], "cls": states[0], "mean": states.astype(np.float64).mean(0)}
    np.testing.assert_allclose(whole[0].outputs.data, expected[pooling], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("max_len", "num_blocks", "longest", "message"),
    [
        (128, NUM_BLOCKS, 128, "max_model_len=128 leaves no room for all of it: shorten it"),
        (128, 11, 40, "the KV cache, which holds 41 tokens, leaves no room for all of it"),
        (125, 32, 124, "need 32 KV blocks of 4 tokens; there are 31 in all"),
    ],
)
def test_a_prompt_that_is_too_long(
    directory: Path, max_len: int, num_blocks: int, longest: int, message: str
) -> None:
    llm = LLM(
        str(directory), block_size=4, max_model_len=max_len, num_gpu_blocks_override=num_blocks
    )
    with pytest.raises(RequestError, match=message):
        llm.embed([[5] * (longest + 1)])
    assert llm.embed([[5] * longest])


def test_nothing_has_no_direction() -> None:
    assert of_length_one([0.0, 0.0]) == [0.0, 0.0]
    assert of_length_one([3e300, 4e300]) == [0.6, 0.8]


def test_an_aborted_request_has_no_vector() -> None:
    output = RequestOutput("one", None, [1, 2], [], finished=True)
    with pytest.raises(RequestError, match="request one was aborted before the whole of its"):
        embedded(output, Wanted(Pooling()))


def test_a_pooling_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="pooling='max' must be one of last, mean, cls"):
        PoolingParams(pooling="max")  # type: ignore[arg-type]


def test_concurrent_callers_get_the_same(directory: Path, llm: LLM) -> None:
    async def ask() -> list[Any]:
        engine = AsyncLLM(str(directory), block_size=4, num_gpu_blocks_override=NUM_BLOCKS)
        try:
            asked = [
                engine.embed(prompt, pooling_params=PoolingParams(pooling="mean"))
                for prompt in PROMPTS
            ]
            return list(await asyncio.gather(*asked))
        finally:
            engine.close()

    expected = llm.embed(PROMPTS, PoolingParams(pooling="mean"))
    found = asyncio.run(ask())
    assert [one.outputs for one in found] == [one.outputs for one in expected]
    assert all(one.finished for one in found)
