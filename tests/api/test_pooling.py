"""Scores, classes and the settings of vectors: each is what its definition says."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from octavo import LLM, AsyncLLM, PoolingParams
from octavo.api.outputs import RequestError
from octavo.api.pooling.inputs import longest_prompt, prefix_of
from octavo.api.pooling.tasks import TASKS, wanted
from octavo.api.pooling.vectors import activated, cosine, product
from octavo.model_facts import PoolingFacts
from tests.api.tiny import TEXTS, make_model

WIDTH = 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(str(directory), block_size=4, num_gpu_blocks_override=200)


def vectors_of(llm: LLM, texts: Any, **settings: Any) -> np.ndarray:
    outputs = llm.embed(texts, PoolingParams(**settings))
    return np.array([output.outputs.embedding for output in outputs])


def test_ids_are_a_prompt_and_a_number_is_none(llm: LLM) -> None:
    ids = llm.embed("ab")[0].prompt_token_ids
    (alone,), (listed,) = llm.embed(ids), llm.embed([ids])
    assert alone.outputs.embedding == listed.outputs.embedding
    with pytest.raises(RequestError):
        llm.embed(5)  # type: ignore[arg-type]


def test_a_score_is_the_cosine_of_embeddings(llm: LLM) -> None:
    vectors = vectors_of(llm, [*TEXTS])
    scores = llm.score(TEXTS[0], list(TEXTS))
    expected = vectors @ vectors[0]
    assert [one.outputs.score for one in scores] == pytest.approx(expected.tolist(), abs=1e-6)
    assert scores[0].outputs.score == pytest.approx(1)
    ids = llm.embed(TEXTS[0])[0].prompt_token_ids
    assert scores[0].prompt_token_ids == [*ids, *ids]
    pairs = llm.score(list(TEXTS), [*TEXTS[1:], TEXTS[0]])
    shifted = [float(vectors[index] @ vectors[(index + 1) % 3]) for index in range(3)]
    assert [one.outputs.score for one in pairs] == pytest.approx(shifted, abs=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["a", "b"], ["c"], "data_1 has 2 texts and data_2 1"),
        ([], ["c"], "data_1 is empty"),
        ("a", [], "data_2 is empty"),
    ],
)
def test_texts_that_make_no_pairs(llm: LLM, first: Any, second: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.score(first, second)


def test_a_task_that_the_model_does_not_serve(llm: LLM) -> None:
    for call in (llm.classify, lambda text: llm.encode(text, pooling_task="token_classify")):
        with pytest.raises(RequestError, match=r"does not serve .*; it serves: generate, embed"):
            call("x")
    with pytest.raises(RequestError, match="this one compares embeddings"):
        llm.score("a", "b", instruction="c")


def test_a_conversation_with_an_embedding_model_is_refused_for_that(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model may have no chat template either, but that is not what is wrong."""
    pooling = replace(llm._model.facts.pooling, tasks=("embed",))
    monkeypatch.setattr(llm._model, "facts", replace(llm._model.facts, pooling=pooling))
    monkeypatch.setattr(llm.get_tokenizer(), "chat_templates", {})
    with pytest.raises(RequestError, match="is an embedding model and generates no text; it s"):
        llm.chat([{"role": "user", "content": "x"}])


def test_dimensions_are_the_first_and_have_length_one(llm: LLM) -> None:
    whole = vectors_of(llm, TEXTS[0], use_activation=False)[0]
    cut = vectors_of(llm, TEXTS[0], dimensions=5)[0]
    np.testing.assert_allclose(cut, whole[:5] / np.linalg.norm(whole[:5]))
    with pytest.raises(RequestError, match=r"dimensions=33 are more than .* have: 32"):
        vectors_of(llm, "x", dimensions=WIDTH + 1)


def test_texts_and_token_ids_are_cut_at_their_end(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(TEXTS[0])
    expected = vectors_of(llm, [ids[:4]])[0].tolist()
    for prompt in (TEXTS[0], ids, {"prompt": TEXTS[0]}, np.array(ids)):
        assert vectors_of(llm, prompt, truncate_prompt_tokens=4)[0].tolist() == expected
    long = [5] * 200
    with pytest.raises(RequestError, match="the prompt has 200 tokens"):
        llm.embed([long])
    with pytest.raises(RequestError, match=r"truncate_prompt_tokens=129 is more than this .* 128"):
        llm.embed("x", PoolingParams(truncate_prompt_tokens=129))
    (output,) = llm.embed([long], PoolingParams(truncate_prompt_tokens=-1))
    assert len(output.prompt_token_ids) == longest_prompt(llm._model.facts) == 128


def test_a_prompt_of_the_model_s_comes_before_each_text(llm: LLM) -> None:
    facts = llm._model.facts
    named = replace(facts, pooling=replace(facts.pooling, prompts={"q": "Find: "}))
    assert prefix_of(named, None) == ""
    assert prefix_of(named, "q") == "Find: "
    default = replace(named, pooling=replace(named.pooling, default_prompt="q"))
    assert prefix_of(default, None) == "Find: "
    assert prefix_of(default, "") == ""
    with pytest.raises(RequestError, match="the model has no prompt 'p'; it has: q"):
        prefix_of(named, "p")


def test_callers_in_a_loop_get_the_same(directory: Path, llm: LLM) -> None:
    settings = PoolingParams(truncate_prompt_tokens=6)

    async def ask() -> list[Any]:
        engine = AsyncLLM(str(directory), block_size=4, num_gpu_blocks_override=200)
        try:
            rows = engine.encode(TEXTS[0], pooling_task="token_embed")
            unit = engine.embed(TEXTS[0], pooling_params=settings)
            return [(await rows).outputs.data, (await unit).outputs.embedding]
        finally:
            engine.close()

    rows, unit = asyncio.run(ask())
    (expected,) = llm.encode(TEXTS[0], pooling_task="token_embed")
    assert rows == expected.outputs.data
    assert np.shape(rows) == (len(expected.prompt_token_ids), WIDTH)
    assert unit == llm.embed(TEXTS[0], settings)[0].outputs.embedding


@pytest.mark.parametrize(
    "settings",
    [
        {"dimensions": 0},
        {"dimensions": True},
        {"dimensions": "8"},
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"use_activation": 1},
        {"pooling": "all"},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(settings))):
        PoolingParams(**settings)


def test_what_a_task_needs_of_a_classifier(llm: LLM) -> None:
    about = PoolingFacts(
        tasks=("classify", "score"), classify_kind="cls", labels=("a", "b"), squash="softmax"
    )
    facts = replace(llm._model.facts, pooling=about)
    found = wanted(facts, "classify")
    assert (found.pooling.kind, found.pooling.head) == ("cls", "classify")
    assert found.activation == "softmax"
    assert wanted(facts, "classify", PoolingParams(use_activation=False)).activation == ""
    assert wanted(facts, "token_classify").pooling.kind == "all"
    with pytest.raises(RequestError, match="dimensions are those of an embedding"):
        wanted(facts, "classify", PoolingParams(dimensions=1))
    with pytest.raises(RequestError, match=f"must be one of {', '.join(TASKS)}"):
        wanted(facts, "reward")  # type: ignore[arg-type]


def test_activations_and_similarities() -> None:
    logits = [-800.0, 0.0, 1.0, 800.0]
    assert math.fsum(activated(logits, "softmax")) == pytest.approx(1)
    assert activated([0.0, math.log(3)], "softmax") == pytest.approx([0.25, 0.75])
    assert activated(logits, "sigmoid") == pytest.approx([0, 0.5, 1 / (1 + math.exp(-1)), 1])
    assert activated(logits, "none") == logits
    assert cosine([3.0, 4.0], [3.0, 4.0]) == 1
    assert cosine([1.0, 0.0], [-2.0, 0.0]) == -1
    assert cosine([0.0, 0.0], [1.0, 1.0]) == 0
    assert product([1.0, 2.0], [3.0, 4.0]) == 11
