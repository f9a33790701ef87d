"""/v1/decisions of OpenAI's API: questions in a list, about texts of the user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET

from octavo.api.outputs import RequestOutput
from octavo.dialects.decisions.questions import (
    DecisionWriter,
    Question,
    Reading,
    asked_questions,
    choice,
    score,
    yes_or_no,
)
from octavo.dialects.decisions.schema import (
    Choice,
    DecisionMessage,
    DecisionsRequest,
    DecisionsResponse,
    DecisionsUsage,
    InputDetails,
    OutputDetails,
    Predicate,
    Score,
)
from octavo.serving.operation import GenerationRequest, TokenCounts
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid, not_yet
from octavo.transport.exchange import encode

_TEXT = "input_text"


def translate(context: TranslationContext, request: DecisionsRequest) -> GenerationRequest:
    """Return the neutral form: a prompt for each question, of which one token is generated."""
    text = request.input if isinstance(request.input, str) else _text(request.input)
    questions = [_question(f"questions[{n}]", each) for n, each in enumerate(request.questions)]
    return asked_questions(
        context,
        request,
        text,
        questions,
        ("input", [f"questions[{index}]" for index in range(len(questions))]),
        partial(DecisionsWriter, request, questions),
    )


def _text(messages: Sequence[DecisionMessage]) -> str:
    texts = []
    for index, message in enumerate(messages):
        if isinstance(message.content, str):
            texts.append(message.content)
            continue
        for place, part in enumerate(message.content):
            where = f"input[{index}].content[{place}]"
            if part.type != _TEXT:
                what = f"this model takes text input only, as {_TEXT}; it has no {part.type!r}"
                raise not_yet(where, what)
            if part.text is None:
                raise invalid(f"{where}.text is missing", f"{where}.text")
            texts.append(part.text)
    return "\n\n".join(texts)


def _question(where: str, asked: Predicate | Choice | Score) -> Question:
    if isinstance(asked, Predicate):
        return yes_or_no(asked.instructions)
    if isinstance(asked, Score):
        levels = [(level.label, level.description) for level in asked.levels]
        return score(asked.instructions, levels)
    values = [(type(each.value), each.value) for each in asked.choices]
    if len(set(values)) < len(values):
        raise invalid(f"{where}.choices has a value twice", f"{where}.choices")
    names = [encode(each.value).decode() for each in asked.choices]  # true is not "true"
    options = [(name, each.description) for name, each in zip(names, asked.choices, strict=True)]
    return choice(asked.instructions, options)


class DecisionsWriter(DecisionWriter[DecisionsRequest]):
    """The answers in the order of the questions."""

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response with all answers."""
        readings = yield from self.readings(outputs)
        usage = DecisionsUsage(
            input_tokens=counts.prompt,
            input_tokens_details=InputDetails(cached_tokens=counts.cached),
            output_tokens=counts.generated,
            total_tokens=counts.prompt + counts.generated,
            output_tokens_details=OutputDetails(),
        )
        answers = list(map(_answer, self._request.questions, readings))
        yield encode(DecisionsResponse(model=self._model, answers=answers, usage=usage))


def _answer(asked: Predicate | Choice | Score, read: Reading) -> dict[str, Any]:
    """Return an answer in the form that its kind has."""
    name = None if asked.name is UNSET else asked.name
    if isinstance(asked, Predicate):
        return {"type": "predicate", "name": name, "probability": read.shares[0]}
    if isinstance(asked, Choice):
        return {
            "type": "choice",
            "name": name,
            "choice": asked.choices[read.best].value,
            "probabilities": [
                {"value": each.value, "probability": share}
                for each, share in zip(asked.choices, read.shares, strict=True)
            ],
            "confidence": read.confidence,
        }
    return {
        "type": "score",
        "name": name,
        "score": read.mean,
        "probabilities": [
            {"value": value, "label": level.label, "probability": share}
            for value, (level, share) in enumerate(zip(asked.levels, read.shares, strict=True))
        ],
        "confidence": read.confidence,
    }
