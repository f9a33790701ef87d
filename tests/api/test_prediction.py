"""A prediction saves steps and changes no token, whether the answer follows it or not."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.api.outputs import RequestError, RequestOutput
from octavo.api.prediction import followed_part
from octavo.core.pace.width_times import WidthTimes
from octavo.core.sampling_params import RequestOutputKind
from tests.api.tiny import make_model

PROMPT = [5, 6, 7, 8]
GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=1.0, seed=4)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])


@pytest.fixture(autouse=True)
def costs_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafts be sent by what is expected first: so small a model says little of rows."""
    monkeypatch.setattr(WidthTimes, "learn", lambda *arguments, **more: None)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(str(make_model(tmp_path_factory.mktemp("model"))), num_threads=1) as made:
        yield made


def answer(llm: LLM, sampling: SamplingParams, **changes: Any) -> RequestOutput:
    (output,) = llm.generate([PROMPT], replace(sampling, **changes), use_tqdm=False)
    return output


def ids_of(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


@BOTH
def test_a_right_prediction_saves_most_steps(llm: LLM, sampling: SamplingParams) -> None:
    plain = answer(llm, sampling)
    found = answer(llm, sampling, prediction=ids_of(plain))
    assert ids_of(found) == ids_of(plain)
    assert plain.metrics is not None
    assert found.metrics is not None
    assert plain.metrics.num_decode_steps == 59
    assert found.metrics.num_decode_steps < 15
    one = found.outputs[0]
    assert one.num_accepted_prediction_tokens == found.metrics.num_accepted_drafts > 44
    assert one.num_rejected_prediction_tokens == 0


def edited(ids: list[int]) -> list[int]:
    """Return a text with a token replaced, three left out and four put in."""
    return [*ids[:15], 9, *ids[16:30], *ids[33:45], 11, 12, 13, 14, *ids[45:]]


@BOTH
def test_drafts_continue_behind_what_differs(llm: LLM, sampling: SamplingParams) -> None:
    plain = answer(llm, sampling)
    found = answer(llm, sampling, prediction=edited(ids_of(plain)))
    assert ids_of(found) == ids_of(plain)
    assert found.metrics is not None
    assert found.metrics.num_decode_steps < 30
    assert 0 < found.outputs[0].num_rejected_prediction_tokens < 60


@BOTH
def test_a_wrong_prediction_is_soon_not_followed(llm: LLM, sampling: SamplingParams) -> None:
    plain = answer(llm, sampling)
    unlike = [token for token in range(20, 280) if token not in ids_of(plain)] * 2
    found = answer(llm, sampling, prediction=unlike[:120])
    assert ids_of(found) == ids_of(plain)
    assert found.outputs[0].num_accepted_prediction_tokens == 0
    assert found.outputs[0].num_rejected_prediction_tokens < 33


def test_a_text_is_tokenised(llm: LLM) -> None:
    plain = answer(llm, GREEDY, allowed_token_ids=range(70, 95))
    text = plain.outputs[0].text
    found = answer(llm, GREEDY, allowed_token_ids=range(70, 95), prediction=text)
    assert ids_of(found) == ids_of(plain)
    assert found.outputs[0].num_accepted_prediction_tokens > 9


def test_each_of_several_answers_follows_it(llm: LLM) -> None:
    plain = answer(llm, DRAWN, n=3)
    found = answer(llm, DRAWN, n=3, prediction=plain.outputs[2].token_ids)
    assert [one.token_ids for one in found.outputs] == [one.token_ids for one in plain.outputs]
    accepted = [one.num_accepted_prediction_tokens for one in found.outputs]
    assert accepted[2] > 44
    assert max(accepted[:2]) < 20


def test_an_answer_that_a_stop_string_ends_has_its_counts(llm: LLM) -> None:
    plain = answer(llm, GREEDY)
    text = plain.outputs[0].text
    stop = text[len(text) // 2 :][:4]
    kind = RequestOutputKind.FINAL_ONLY
    fields: dict[str, Any] = {"stop": [stop], "output_kind": kind}
    before = answer(llm, GREEDY, **fields)
    found = answer(llm, GREEDY, **fields, prediction=ids_of(plain))
    assert found.outputs[0].text == before.outputs[0].text
    assert found.outputs[0].num_accepted_prediction_tokens > 4


def test_speculation_can_be_switched_off(llm: LLM) -> None:
    ids = ids_of(answer(llm, GREEDY))
    found = answer(llm, GREEDY, prediction=ids, speculation=False)
    assert ids_of(found) == ids
    assert found.metrics is not None
    assert found.metrics.num_drafts == 0


@pytest.mark.parametrize(
    ("options", "drafts"),
    [
        ({"speculative_config": {"method": "ngram"}}, True),
        ({"speculative_config": {"method": "off"}}, False),
        ({"async_scheduling": True}, True),
        ({"max_num_batched_tokens": 1, "max_num_seqs": 1}, False),
    ],
)
def test_engines_of_every_kind_take_one(
    tmp_path: Path, llm: LLM, options: dict[str, Any], drafts: bool
) -> None:
    ids = ids_of(answer(llm, DRAWN))
    with LLM(str(make_model(tmp_path)), num_threads=1, **options) as other:
        prompts = [PROMPT, [20, 21], [30, 31, 32]]
        asked = [replace(DRAWN, prediction=tuple(ids)), DRAWN, replace(DRAWN, speculation=False)]
        found = other.generate(prompts, asked, use_tqdm=False)
    assert ids_of(found[0]) == ids
    plain = llm.generate(prompts, DRAWN, use_tqdm=False)
    assert [ids_of(each) for each in found] == [ids_of(each) for each in plain]
    metrics = [each.metrics for each in found]
    assert metrics[0] is not None
    assert bool(metrics[0].num_accepted_predicted) is drafts
    assert metrics[2] is not None
    assert metrics[2].num_drafts == 0


@pytest.mark.parametrize(
    ("prediction", "code"),
    [
        ([5, 300], None),
        ([5, -1], None),
        ([True], None),
        ([1.5], None),
        (7, None),
        ({"a": 1}, None),
        (b"abc", None),
        ([5] * 129, "context_length_exceeded"),
        ("x" * ((1 << 22) + 1), None),
    ],
)
def test_what_no_answer_can_follow_is_refused(llm: LLM, prediction: Any, code: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        answer(llm, GREEDY, prediction=prediction)
    assert (caught.value.param, caught.value.code) == ("prediction", code)


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "kept"),
    [(100_000, 100, 4096), (100_000, 5000, 20_000), (100_000, 30_000, 100_000), (50, 1, 50)],
)
def test_of_a_prediction_the_part_is_kept_that_an_answer_may_reach(
    num_tokens: int, max_tokens: int, kept: int
) -> None:
    model: Any = SimpleNamespace(facts=SimpleNamespace(max_model_len=100_000))
    given = array("i", range(num_tokens))
    assert followed_part(model, given, max_tokens) == given[:kept]


@pytest.mark.parametrize("nothing", ["", [], None, ()])
def test_nothing_may_be_predicted(llm: LLM, nothing: Any) -> None:
    assert SamplingParams(prediction=nothing).prediction == ""
    assert answer(llm, GREEDY, prediction=nothing).outputs[0].num_accepted_prediction_tokens == 0
