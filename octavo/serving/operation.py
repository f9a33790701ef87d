"""The neutral types between a dialect and the machinery: a request to generate, a writer.

    the dialect's struct ── translate ──▶ GenerationRequest ── prepare ──▶ PreparedRequest
    frames ◀── Writer ◀── RequestOutput: the typed deltas of `octavo.formats.deltas`

Nothing here belongs to one dialect. A dialect is a folder with its structs, a function for each
route that translates, a writer, and a `Dialect` with its errors and frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.api.outputs import RequestOutput
from octavo.api.reading import Reading
from octavo.api.requests import CheckedRequest
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.observe.request_timing import RequestTiming
from octavo.serving.answers.tool_use import NO_TOOLS, ToolUse
from octavo.serving.exchange import Exchange
from octavo.transport.errors import ApiError
from octavo.workers.answer_shape import AnswerJob
from octavo.workers.jobs import PreparedPrompt, PromptJob, Refused

TURN = b""  # instead of a frame: other requests may run before what follows is made


@dataclass(slots=True)
class TokenCounts:
    """The tokens of a request so far, all prompts and continuations together."""

    prompt: int
    generated: int = 0
    reasoning: int = 0  # of those
    # Of each answer, by its prompt and number: drafts from the request's prediction that were
    # accepted, and that were not.
    predicted: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    cached_by_prompt: dict[int, int] = field(default_factory=dict)
    timing: RequestTiming | None = None  # at the end of one answer, if answers are to have it

    @property
    def cached(self) -> int:
        """The prompt tokens that came from the prefix cache."""
        return sum(self.cached_by_prompt.values())

    @property
    def accepted_prediction(self) -> int:
        """The drafts from the request's prediction that became part of an answer."""
        return sum(accepted for accepted, _ in self.predicted.values())

    @property
    def rejected_prediction(self) -> int:
        """The drafts from the request's prediction that were wrong."""
        return sum(rejected for _, rejected in self.predicted.values())


class Writer(Protocol):
    """A dialect's way to write one answer. What it returns for a stream are complete frames."""

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return the frames before the first token."""

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterable[bytes]:
        """Return the frames for what is new, with a `TURN` after each piece of long work.

        The deltas of an answer become frames in their order. For one delta these are frames that
        open it, if it is the first of its kind, and then one that holds all of it. The end of a
        text belongs to the text's frame, and the tokens to the last frame.
        """

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the frames after the last token, with the mark of the end."""

    def failure(self, error: ApiError) -> bytes:
        """Return the frames of an error that ends the stream, with the mark of the end."""

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterable[bytes]:
        """Return the body of the response to a request that is not streamed, in parts.

        After each piece of long work there is a `TURN` among them.
        """


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """The settings of a beam search for `n` answers, besides those of the answers."""

    length_penalty: float
    early_stopping: bool
    most_tokens: int  # of one beam, if the request sets no limit


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """A request to generate, in the terms of no dialect."""

    prompts: list[PromptJob | list[int]]  # texts or a conversation to prepare, or token ids
    sampling: dict[str, Any]  # of SamplingParams, what was asked for; the model has defaults
    # Returns what writes the answer. It must not keep the exchange: the exchange keeps it.
    writer: Callable[[Exchange, PreparedRequest], Writer]
    # Returns an error with the dialect's name of its field, for the prompt's index. The neutral
    # names are those of SamplingParams, of Conversation, and "prompt".
    named: Callable[[ApiError, int], ApiError]
    # The prompts as a worker has prepared them while it read the body; a refusal is the last.
    prepared: list[PreparedPrompt | Refused] | None = None
    max_tokens: int | None = None  # refused if so many do not fit
    # Instead of `max_tokens` if that is None, and reduced to what fits. None: as many as the
    # model's makers recommend, or as fit.
    default_max_tokens: int | None = None
    is_stream: bool = False
    kind: bytes = b"application/json"  # of a whole answer: its content type
    reports_prompt: bool = False  # a stream has outputs without answers, one for each chunk of it
    explains: bool = False  # where the time went, in the answer
    drops_output: bool = False  # the engine must generate a token that was not asked for
    wants_text: bool = False  # of prompts that are token ids
    bad_words: list[str] = field(default_factory=list)  # in every spelling
    prediction: str | list[int] = ""  # a text or token ids that the answers may follow
    # For each of them, what is added to the logits of its tokens; empty: they are forbidden.
    word_biases: list[float] = field(default_factory=list)
    # Whose tokens' log-probabilities are wanted where an answer begins; `bad_words` are then their
    # spellings, which a worker tokenises.
    labels: list[str] = field(default_factory=list)
    # The characters of all prompts that are there once in the body, or a few times.
    num_repeated: int = 0
    bans_end: bool = False  # the tokens that end an answer are never drawn
    may_lack_budget: bool = False  # a model whose reasoning cannot have one answers without it
    keep_tokens: int | None = None  # of each prompt, at most; -1: what the answer leaves free
    keeps_end: bool = True  # of a prompt that is cut
    keeps_frame: bool = False  # if a text is cut: the special tokens around it
    # Of a longer prompt that is embedded in pieces, at most; None: it is refused.
    most_in_pieces: int | None = None
    drops_turns: bool = False  # the oldest of a conversation that is too long
    # How answers to a prompt are read, by the end of the prompt's text; None: they are text alone.
    reading: Callable[[str], Reading] | None = None
    shape: StructuredOutputsParams | None = None  # of each answer's text
    # What answers consist of, by the end of their prompt, if not only of text in that shape.
    answer_job: Callable[[str], AnswerJob] | None = None
    tools: ToolUse = NO_TOOLS  # how the answers may use tools
    # The answers leave the reasoning out, and with it what each of their tokens is.
    hides_tokens: bool = False
    warnings: list[str] = field(default_factory=list)  # of what was asked for and is not done
    # Whether the deltas of one token stay apart from those of the next, so that the events of a
    # stream depend on nothing but the tokens.
    keeps_apart: bool = False
    # Whether the dialect's own events say where a stream continues. Its writer then leaves out what
    # the client knows.
    numbers_events: bool = False
    beams: BeamSettings | None = None  # the answers are those of a beam search
    # The engine's id of the adapter, whose content is kept while the request is answered.
    lora: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    deadline_ms: int | None = None

    @property
    def is_about_prompts(self) -> bool:
        """True if nothing is generated: the answer is made of the prompts' hidden states."""
        return self.sampling.get("pooling") is not None


@dataclass(slots=True)
class PreparedRequest:
    """A request whose prompts have been tokenised and whose bounds have been checked."""

    asked: GenerationRequest
    prompts: list[PreparedPrompt]
    sampling: SamplingParams
    checked: list[CheckedRequest]  # one for each prompt, with the same sampling
    # The number of the asked-for prompt that each belongs to, if some are pieces of one.
    owners: list[int] | None = None
    warnings: list[str] = field(default_factory=list)  # of what was asked for and is not done
