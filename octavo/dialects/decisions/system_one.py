"""/v1/systemone: questions with names, about a state that may be any JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from octavo.api.outputs import RequestOutput
from octavo.dialects.decisions.questions import (
    YES_OR_NO,
    DecisionWriter,
    Question,
    Reading,
    asked_questions,
    choice,
    score,
    yes_or_no,
)
from octavo.dialects.decisions.schema import (
    MAX_CHOICES,
    MAX_LEVELS,
    AskedQuestion,
    Diagnosis,
    SystemOneRequest,
    SystemOneResponse,
    SystemOneUsage,
)
from octavo.serving.operation import GenerationRequest, TokenCounts
from octavo.serving.translation import TranslationContext
from octavo.text.chat.messages import THINKING_SWITCHES
from octavo.transport.errors import invalid
from octavo.transport.exchange import encode


def translate(context: TranslationContext, request: SystemOneRequest) -> GenerationRequest:
    """Return the neutral form: a prompt for each question, of which one token is generated."""
    kwargs = request.chat_template_kwargs or {}
    for name in THINKING_SWITCHES:
        if kwargs.get(name):
            where = f"chat_template_kwargs.{name}"
            what = "thinking must be off, since the first token of the reply is the answer"
            raise invalid(f"{where}: {what}", where)
    state = request.state
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
    questions = [_question(name, each) for name, each in request.questions.items()]
    return asked_questions(
        context,
        request,
        text,
        questions,
        ("state", [_place(name) for name in request.questions]),
        partial(SystemOneWriter, request, questions),
        system=request.instructions,
        variables=kwargs,
    )


def _place(name: str) -> str:
    return f"questions.{name}"


def _question(name: str, asked: AskedQuestion) -> Question:
    where, given = f"{_place(name)}.criteria", asked.criteria
    instructions = asked.instructions or ""
    if asked.type == "choice":
        if not isinstance(given, dict) or not given:
            raise invalid(f"{where} must be an object of options and their descriptions", where)
        if len(given) > MAX_CHOICES:
            what = f"{where} has {len(given)}; at most {MAX_CHOICES} options are accepted"
            raise invalid(what, where)
        return choice(instructions, [(each, _text(about, where)) for each, about in given.items()])
    if asked.type == "score":
        if not isinstance(given, list) or not 2 <= len(given) <= MAX_LEVELS:
            what = f"{where} must be an ordered list of levels, from 2 to {MAX_LEVELS}"
            raise invalid(what, where)
        return score(instructions, [(_text(level, where), "") for level in given])
    if given is not None and not isinstance(given, dict):
        raise invalid(f"{where} must be an object with descriptions of true and false", where)
    given = given or {}
    unknown = given.keys() - {"true", "false"}
    if unknown:
        raise invalid(f"{where} has {min(unknown)[:64]!r}; it may have true and false", where)
    yes, no = (_text(given.get(each), where) for each in ("true", "false"))
    return yes_or_no(instructions, yes, no)


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str | int | float):
        return str(value)
    raise invalid(f"{where}: descriptions and levels are texts", where)


class SystemOneWriter(DecisionWriter[SystemOneRequest]):
    """The answers by the names of the questions."""

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response with all answers, and how far each can be trusted."""
        readings = yield from self.readings(outputs)
        read = dict(zip(self._request.questions, readings, strict=True))
        named = dict(zip(self._request.questions, self._questions, strict=True))
        yield encode(
            SystemOneResponse(
                id=self._id,
                created=self._created,
                model=self._model,
                answers={
                    name: _answer(asked.type, named[name], read[name])
                    for name, asked in self._request.questions.items()
                },
                usage=SystemOneUsage(input_tokens=counts.prompt, output_tokens=counts.generated),
                diagnostics={
                    name: Diagnosis(label_mass=each.mass, argmax_is_label=each.is_likeliest)
                    for name, each in read.items()
                },
            )
        )


def _answer(kind: str, question: Question, read: Reading) -> dict[str, Any]:
    """Return an answer in the form that its kind has."""
    names = [option.name for option in question.options]
    answer: dict[str, Any] = {"type": kind}
    if kind == "choice":
        answer["choice"] = names[read.best]
    elif kind == "noul":
        names = list(YES_OR_NO)
        answer["noul"] = read.shares[0]
    else:
        places = [option.label for option in question.options]
        answer |= {"score": read.mean, "legend": dict(zip(places, names, strict=True))}
        names = places
    probabilities = dict(zip(names, read.shares, strict=True))
    return {**answer, "probabilities": probabilities, "confidence": read.confidence}
