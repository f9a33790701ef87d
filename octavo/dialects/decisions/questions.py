"""Questions in the terms of no route: their prompts, and the reading of their answers.

Each question is a conversation of its own: the text that all questions are about, the question, its
options with a label each. The answer is read from the log-probabilities of the labels where the
reply would begin; the likeliest token is generated and thrown away. Since all prompts begin alike,
the prefix cache computes the text once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp
from string import ascii_uppercase, digits
from typing import Any, Generic, TypeVar

from octavo.api.outputs import RequestOutput
from octavo.dialects.common.dialect import error_body
from octavo.dialects.decisions.dialect import DECISION_ID
from octavo.dialects.decisions.schema import DecisionsRequest, SystemOneRequest
from octavo.serving.answers.labels import label_tokens, spellings
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, GenerationRequest, PreparedRequest, Writer
from octavo.serving.schema.prompts import check_characters
from octavo.serving.translation import TranslationContext
from octavo.text.chat.messages import THINKING_SWITCHES
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob

R = TypeVar("R", bound=DecisionsRequest | SystemOneRequest)

YES_OR_NO = ("yes", "no")


@dataclass(frozen=True, slots=True)
class Option:
    """A possible answer, and its label in the prompt."""

    label: str
    name: str
    description: str = ""

    @property
    def line(self) -> str:
        """The line of the prompt about it."""
        names = (self.name if self.name != self.label else "", self.description)
        what = " - ".join(filter(None, names))
        return f"{self.label}: {what}" if what else self.label


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its options."""

    instructions: str
    options: tuple[Option, ...]
    ask: str  # for what the reply shall be

    @property
    def text(self) -> str:
        """The part of the prompt behind what the question is about."""
        head = [f"Question: {self.instructions}"] if self.instructions else []
        return "\n".join([*head, *(option.line for option in self.options), self.ask])


@dataclass(frozen=True, slots=True)
class Reading:
    """The probabilities of a question's options, which sum to 1, and of all labels together."""

    shares: list[float]
    mass: float  # among all tokens
    is_likeliest: bool  # the likeliest token of all is a label

    @property
    def best(self) -> int:
        """The index of the likeliest option."""
        return self.shares.index(max(self.shares))

    @property
    def confidence(self) -> float:
        """The probability of the likeliest option among all tokens."""
        return self.shares[self.best] * self.mass

    @property
    def mean(self) -> float:
        """The mean of the options' places, by their probabilities."""
        return sum(index * share for index, share in enumerate(self.shares))


def choice(instructions: str, options: Sequence[tuple[str, str]]) -> Question:
    """Return a question for one of several options, which get letters."""
    labelled = zip(ascii_uppercase, options, strict=False)
    made = tuple(Option(label, *option) for label, option in labelled)
    return Question(instructions, made, "Reply with the letter of one option and nothing else.")


def yes_or_no(instructions: str, yes: str = "", no: str = "") -> Question:
    """Return a question for yes or no, in this order."""
    made = (Option("yes", "yes", yes), Option("no", "no", no))
    return Question(instructions, made, "Reply with yes or no and nothing else.")


def score(instructions: str, levels: Sequence[tuple[str, str]]) -> Question:
    """Return a question for a level, which gets its place as its label."""
    labelled = zip(digits, levels, strict=False)
    made = tuple(Option(label, *level) for label, level in labelled)
    return Question(instructions, made, "Reply with the number of one level and nothing else.")


def asked_questions(
    context: TranslationContext,
    request: SystemOneRequest | DecisionsRequest,
    text: str,
    questions: Sequence[Question],
    places: tuple[str, Sequence[str]],
    writer: Callable[[Exchange, PreparedRequest], Writer],
    *,
    system: str | None = None,
    variables: dict[str, Any] | None = None,
) -> GenerationRequest:
    """Return the neutral request with a prompt for each question.

    `places` are the fields of the text and of each question, for errors.
    """
    texts = [question.text for question in questions]
    shared = len(text) + len(system or "") + len(encode(variables or {}))
    repeated = len(texts) * shared
    check_characters(repeated + sum(map(len, texts)), len(texts), places[0])  # before they are made
    before = [{"role": "system", "content": system}] if system else []
    kwargs = {**dict.fromkeys(THINKING_SWITCHES, False), **(variables or {})}
    labels = [option.label for question in questions for option in question.options]
    labels = list(dict.fromkeys(labels))
    jobs: list[PromptJob | list[int]] = [
        PromptJob(
            conversation=context.conversation(
                [*before, {"role": "user", "content": f"{text}\n\n{each}"}],
                kwargs,
                tool_format=None,
            ),
            add_special_tokens=False,
        )
        for each in texts
    ]
    return GenerationRequest(
        prompts=jobs,
        sampling={"temperature": 0.0, "detokenize": False},
        writer=writer,
        named=partial(_named, places),
        max_tokens=1,
        bad_words=spellings(labels),
        labels=labels,
        num_repeated=repeated,
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
    )


def _named(places: tuple[str, Sequence[str]], error: ApiError, index: int) -> ApiError:
    """Return an error of the checks with the name of its field in the request."""
    if error.param in ("prompt", "max_tokens", "messages"):  # too long for the one token
        where = places[1][index]
        return invalid(f"{where}: with {places[0]}, {error.message}", where, error.code)
    return error.renamed({"template": "chat_template_kwargs"})


class DecisionWriter(BaseWriter, Generic[R]):
    """The part of a writer that reads the answers."""

    def __init__(
        self,
        request: R,
        questions: Sequence[Question],
        exchange: Exchange,
        prepared: PreparedRequest,
    ) -> None:
        self._request = request
        self._questions = questions
        self._id = f"{DECISION_ID}{exchange.request_id}"
        self._created = exchange.created
        self._model = exchange.model_name
        self._tokens = label_tokens(
            exchange.server.llm.model.tokenizer,
            prepared.asked.labels,
            prepared.prompts[0].bad_words_token_ids,
        )

    failure = staticmethod(error_body)

    def readings(self, outputs: list[RequestOutput]) -> Generator[bytes, None, list[Reading]]:
        """Return what was read for each question; yield a turn after each."""
        made = []
        for question, output in zip(self._questions, outputs, strict=True):
            made.append(self._reading(question, output))
            yield TURN
        return made

    def _reading(self, question: Question, output: RequestOutput) -> Reading:
        (answer,) = output.outputs
        assert answer.logprobs is not None
        found = answer.logprobs[0]
        groups = [self._tokens[option.label] for option in question.options]
        most = max(found[token].logprob for group in groups for token in group)
        weights = [sum(exp(found[token].logprob - most) for token in group) for group in groups]
        total = sum(weights)
        return Reading(
            shares=[weight / total for weight in weights],
            mass=min(1.0, total * exp(most)),
            is_likeliest=any(answer.token_ids[0] in group for group in groups),
        )
