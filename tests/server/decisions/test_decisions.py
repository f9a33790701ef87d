"""Both routes: probabilities are those of the labels, prompts end with them, bounds, refusals."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from math import exp
from pathlib import Path
from typing import Any

import pytest

from octavo.dialects.decisions.questions import choice, score, yes_or_no
from octavo.dialects.decisions.schema import MAX_QUESTIONS, AskedQuestion, SystemOneRequest
from octavo.dialects.decisions.system_one import translate
from octavo.options.server import ServerSettings
from octavo.serving.schema.prompts import MAX_CHARACTERS
from octavo.serving.server import Server
from octavo.transport.errors import ApiError
from tests.server.durable.make import in_loop
from tests.server.engine import FakeEngine, extended, logprobs_of
from tests.server.llama.infill_files import FIRST, make_infill_directory
from tests.server.make import Client, serving

SYSTEM_ONE, LISTED = "/v1/systemone", "/v1/decisions"
TEXT = "It broke."
YES, NO = FIRST, FIRST + 1
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": {"fox": "brown", "dog": None}}
NOUL = {"type": "noul", "criteria": {"true": "broken"}}
SCORE = {"type": "score", "instructions": "How much?", "criteria": ["low", "mid", "high"]}
ASKED = {"which": CHOICE, "is": NOUL, "much": SCORE}
PREDICATE = {"type": "predicate", "instructions": "Broken?"}
VALUES = {"type": "choice", "instructions": "Which?", "choices": [{"value": True}, {"value": "x"}]}
LEVELS = {
    "type": "score",
    "name": "much",
    "instructions": "How?",
    "levels": [{"label": "low"}, {"label": "high", "description": "very"}],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_infill_directory(tmp_path, ("yes", "no"))


def engine(directory: Path) -> FakeEngine:
    return FakeEngine(directory, max_model_len=1024)


async def tokens_of(client: Client, text: str) -> list[int]:
    """Return the tokens of a text, or of a question's conversation."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    listed: list[int] = (await client.post("/tokenize", json=body)).json()["tokens"]
    return listed


async def groups_of(client: Client, labels: Sequence[str]) -> list[set[int]]:
    """Return the tokens that are a label, with or without a space before it."""
    groups = []
    for label in labels:
        group = set()
        for text in (label, f" {label}"):
            body = {"prompt": text, "add_special_tokens": False}
            group.add((await client.post("/tokenize", json=body)).json()["tokens"][-1])
        groups.append(group)
    return groups


def expected(prompt: list[int], groups: list[set[int]]) -> tuple[list[float], float, bool]:
    """Return what the engine's log-probabilities make: shares, all together, and the likeliest."""
    state = 0
    for token in prompt:
        state = extended(state, token)
    named = sorted(set().union(*groups))
    found = logprobs_of(state, named[0], 0, named)
    of = dict(zip(found.token_ids[1:], map(exp, found.logprobs[1:]), strict=True))
    weights = [sum(of[token] for token in group) for group in groups]
    best = logprobs_of(state, named[0], 1).token_ids[1]
    return [each / sum(weights) for each in weights], sum(weights), best in set().union(*groups)


@in_loop
async def test_answers_are_read_from_the_labels_behind_each_question(directory: Path) -> None:
    questions = {
        "which": (choice("Which?", [("fox", "brown"), ("dog", "")]), "AB"),
        "is": (yes_or_no("", "broken"), ("yes", "no")),
        "much": (score("How much?", [("low", ""), ("mid", ""), ("high", "")]), "012"),
    }
    async with serving(directory, engine(directory), strict=True) as client:
        body = {"state": TEXT, "questions": ASKED}
        found = (await client.post(SYSTEM_ONE, json=body)).json()
        assert (found["object"], found["joint"]) == ("structured_decision", None)
        assert list(found["answers"]) == list(found["diagnostics"]) == list(ASKED)
        total = 0
        for name, (question, labels) in questions.items():
            prompt = await tokens_of(client, f"{TEXT}\n\n{question.text}")
            total += len(prompt)
            groups = await groups_of(client, labels)
            shares, mass, is_label = expected(prompt, groups)
            answer, diagnosis = found["answers"][name], found["diagnostics"][name]
            assert list(answer["probabilities"].values()) == pytest.approx(shares)
            assert answer["confidence"] == pytest.approx(max(shares) * mass)
            assert diagnosis["label_mass"] == pytest.approx(mass)
            assert diagnosis["argmax_is_label"] is is_label
        assert found["usage"] == {"input_tokens": total, "output_tokens": 3}
        which, is_it, much = found["answers"].values()
        best = max(which["probabilities"], key=which["probabilities"].get)
        assert (which["choice"], set(which["probabilities"])) == (best, {"fox", "dog"})
        assert is_it["noul"] == is_it["probabilities"]["yes"]
        assert much["legend"] == {"0": "low", "1": "mid", "2": "high"}
        mean = sum(int(place) * share for place, share in much["probabilities"].items())
        assert much["score"] == pytest.approx(mean)
        explained = await client.get(f"/v1/requests/{found['id']}/explain")
        assert explained.status_code == 200


def test_a_question_lists_its_options_with_their_labels() -> None:
    assert choice("Which?", [("fox", "brown"), ("dog", "")]).text.splitlines()[:3] == [
        *("Question: Which?", "A: fox - brown", "B: dog")
    ]
    assert yes_or_no("", "broken").text.splitlines()[:2] == ["yes: broken", "no"]
    assert score("", [("low", ""), ("high", "very")]).text.splitlines()[:2] == [
        *("0: low", "1: high - very"),
    ]


@in_loop
async def test_both_routes_read_the_same(directory: Path) -> None:
    async with serving(directory, engine(directory), strict=True) as client:
        body = {"state": TEXT, "questions": {"is": {"type": "noul", "instructions": "Broken?"}}}
        one = (await client.post(SYSTEM_ONE, json=body)).json()
        for given in (
            TEXT,
            [{"role": "user", "content": TEXT}],
            [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}],
        ):
            asked = {"input": given, "questions": [PREDICATE, VALUES, LEVELS]}
            found = (await client.post(LISTED, json=asked)).json()
            assert found.keys() == {"model", "answers", "usage"}
            predicate, values, levels = found["answers"]
            assert predicate["probability"] == one["answers"]["is"]["noul"]
            assert predicate["name"] is values["name"] is None
            assert levels["name"] == "much"
            assert [each["value"] for each in values["probabilities"]] == [True, "x"]
            best = max(values["probabilities"], key=lambda each: each["probability"])
            assert values["choice"] == best["value"]
            assert [each["label"] for each in levels["probabilities"]] == ["low", "high"]
            assert levels["score"] == levels["probabilities"][1]["probability"]
            usage = found["usage"]
            assert usage["output_tokens"] == 3
            assert usage["total_tokens"] == usage["input_tokens"] + 3


@in_loop
async def test_a_state_may_be_any_json_and_has_a_context_before_it(directory: Path) -> None:
    async with serving(directory, engine(directory)) as client:
        asked = {"questions": {"is": NOUL}}
        texts = [{"a": ["é", 1]}, '{"a": ["é", 1]}']
        one, other = [
            (await client.post(SYSTEM_ONE, json={"state": each, **asked})).json() for each in texts
        ]
        assert one["answers"] == other["answers"]
        more = {"state": texts[1], **asked, "instructions": "Be strict."}
        found = (await client.post(SYSTEM_ONE, json=more)).json()
        assert found["usage"]["input_tokens"] > one["usage"]["input_tokens"]


MANY = {f"q{index}": NOUL for index in range(MAX_QUESTIONS + 1)}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"questions": {}}, "questions"),
        ({"questions": MANY}, "questions"),
        ({"questions": {"q": {**CHOICE, "criteria": None}}}, "questions.q.criteria"),
        ({"questions": {"q": {**CHOICE, "criteria": {}}}}, "questions.q.criteria"),
        (
            {"questions": {"q": {**CHOICE, "criteria": dict.fromkeys(map(str, range(27)))}}},
            "questions.q.criteria",
        ),
        ({"questions": {"q": {**CHOICE, "criteria": {"a": {}}}}}, "questions.q.criteria"),
        ({"questions": {"q": {**NOUL, "criteria": ["yes"]}}}, "questions.q.criteria"),
        ({"questions": {"q": {**NOUL, "criteria": {"maybe": "x"}}}}, "questions.q.criteria"),
        ({"questions": {"q": {**SCORE, "criteria": ["one"]}}}, "questions.q.criteria"),
        ({"questions": {"q": {**SCORE, "criteria": ["x"] * 11}}}, "questions.q.criteria"),
        ({"questions": {"q": {"type": "other"}}}, "questions.q.type"),
        (
            {"chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking",
        ),
        ({"joint": True}, "joint"),
        ({"images": ["data:"]}, "images"),
        ({"model": "other"}, "model"),
        ({"state": "word " * 2000}, "questions.is"),
        (
            {"state": "x" * (1 << 20), "questions": dict.fromkeys(map(str, range(40)), NOUL)},
            "state",
        ),
    ],
)
@in_loop
async def test_a_refusal_names_the_question(directory: Path, fields: Any, param: str) -> None:
    async with serving(directory, engine(directory)) as client:
        body = {"state": TEXT, "questions": {"is": NOUL}, **fields}
        refused = await client.post(SYSTEM_ONE, json=body)
        assert refused.status_code in (400, 404)
        assert refused.json()["error"]["param"] == param


IMAGE = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": IMAGE}, "input[0].content[0]"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input[0].role"),
        ({"questions": []}, "questions"),
        ({"questions": [PREDICATE] * (MAX_QUESTIONS + 1)}, "questions"),
        ({"questions": [{**VALUES, "choices": [{"value": "x"}] * 2}]}, "questions[0].choices"),
        ({"questions": [{**VALUES, "choices": [{"value": "x"}]}]}, "questions[0].choices"),
        ({"input": "word " * 2000}, "questions[0]"),
    ],
)
@in_loop
async def test_a_refusal_names_the_place(directory: Path, fields: Any, param: str) -> None:
    async with serving(directory, engine(directory)) as client:
        body = {"input": TEXT, "questions": [PREDICATE], **fields}
        refused = await client.post(LISTED, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param


@in_loop
async def test_a_misspelt_field_of_a_question_is_refused(directory: Path) -> None:
    async with serving(directory, engine(directory)) as client:
        body = {"state": TEXT, "questions": {"is": {**NOUL, "critria": {}}}}
        assert (await client.post(SYSTEM_ONE, json=body)).status_code == 400


@in_loop
async def test_a_model_without_a_token_for_a_label_refuses(tmp_path: Path) -> None:
    directory = make_infill_directory(tmp_path, ("yes", "nay"))
    async with serving(directory, engine(directory)) as client:
        body = {"state": TEXT, "questions": {"is": NOUL}}
        refused = await client.post(SYSTEM_ONE, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        body = {"state": TEXT, "questions": {"which": CHOICE}}
        assert (await client.post(SYSTEM_ONE, json=body)).status_code == 200


def test_too_many_prompts_are_refused_before_they_are_made(directory: Path) -> None:
    context = Server(engine(directory), ServerSettings()).context
    asked = {f"q{index}": AskedQuestion(type="noul") for index in range(MAX_QUESTIONS)}
    request = SystemOneRequest(state="x" * (MAX_CHARACTERS // 32), questions=asked)
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            translate(context, request)
        assert refused.value.param == "state"
        assert tracemalloc.get_traced_memory()[1] < MAX_CHARACTERS // 32
    finally:
        tracemalloc.stop()


@in_loop
async def test_the_prompts_count_among_the_bytes_that_wait(directory: Path) -> None:
    state = "x" * 700
    body = {"state": state, "questions": dict.fromkeys(map(str, range(MAX_QUESTIONS)), NOUL)}
    limit = 32 * len(state)
    kwargs = {"state": TEXT, "chat_template_kwargs": {"unknown": state}}
    async with serving(directory, engine(directory), max_waiting_bytes=limit) as client:
        admission = client.server.admission
        assert (await client.post(SYSTEM_ONE, json=body)).status_code == 200  # it has room alone
        other = admission.register("", 10)
        refused = await client.post(SYSTEM_ONE, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "bytes")
        refused = await client.post(SYSTEM_ONE, json={**body, **kwargs})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "bytes")
        few = {**body, "questions": {"is": NOUL}}
        assert (await client.post(SYSTEM_ONE, json=few)).status_code == 200
        assert (admission.num_waiting, admission.waiting_bytes) == (1, 10)
        other.leave()


LISTS = (
    "{% for m in messages %}{% if m.content is string %}one{% else %}"
    "{% for part in m.content %}two three four{% endfor %}{% endif %}{% endfor %}"
)


@in_loop
async def test_templates_read_the_content_that_the_server_says(directory: Path) -> None:
    body = {"state": TEXT, "questions": {"is": NOUL}}
    for content_format, text in (("string", "one"), ("openai", "two three four")):
        options: Any = {"chat_template": LISTS, "chat_template_content_format": content_format}
        async with serving(directory, engine(directory), **options) as client:
            asked = {"prompt": text, "add_special_tokens": False}
            tokens = (await client.post("/tokenize", json=asked)).json()["tokens"]
            found = (await client.post(SYSTEM_ONE, json=body)).json()
            assert found["usage"]["input_tokens"] == len(tokens)
