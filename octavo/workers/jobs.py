"""The jobs of worker processes and their answers, as they cross the socket between them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from octavo.formats.description import ToolFormat
from octavo.grammar.checked import CheckedShape, ShapeJob
from octavo.text.chat.messages import ContentFormat
from octavo.text.pairs import Pair, Part
from octavo.text.pieces import Infill
from octavo.text.token_table import PackedTable
from octavo.workers.answer_shape import AnswerJob

# What the jobs of a worker are about: prompts alone, large bodies too, or shapes.
Duty = Literal["prompts", "bodies", "shapes"]


class Conversation(Struct, frozen=True, kw_only=True):
    """The arguments of a chat template."""

    messages: list[dict[str, Any]]
    template: str | None = None  # None: the model's own
    tools: list[dict[str, Any]] | None = None
    tool_format: ToolFormat | None = None  # for what the template does not write of tools
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    content_format: ContentFormat = "auto"
    variables: dict[str, Any] = {}
    has_dates: bool = False  # beside its variables the template has the date
    moves_system: bool = False  # to the first message, if the template refuses it elsewhere


class PromptJob(Struct, frozen=True, kw_only=True):
    """The source of one prompt: a text, several parts, a conversation, or token ids."""

    text: str | None = None
    text_tokens: int | None = None  # of a text alone, at most: it is cut at its end before all else
    infill: Infill | None = None  # of a text: what will follow the answer
    pair: Pair | None = None
    parts: list[Part] = []  # each is tokenised on its own
    conversation: Conversation | None = None
    packed_ids: bytes = b""
    add_special_tokens: bool = True
    bad_words: list[str] = []  # tokenised each on its own
    breakers: list[str] = []  # over which no repetition reaches, with DRY
    prediction: str = ""  # a text that the answers may follow
    packed_prediction: bytes = b""  # its tokens instead
    keep_tokens: int | None = None  # of the prompt, at most
    keeps_end: bool = True  # of a prompt that is cut
    keeps_frame: bool = False  # if a text is cut: the special tokens around it
    # Of a conversation: its oldest turns are left out until it has no more. None: nothing is.
    fit_tokens: int | None = None
    max_tokens: int | None = None  # a longer prompt will be refused: its tokens are not sent back
    wants_text: bool = True  # of the prompt, as far as the server has not sent it
    keeps_text: bool = False  # as it was given, whatever is cut
    lists_tokens: bool = False  # as JSON, instead of the token ids
    lists_strings: bool = False  # of the tokens, as the vocabulary has them
    wants_places: bool = False  # of the tokens in the text that was tokenised
    wants_answers: bool = False  # which tokens are the assistant's, as far as the template says
    lists_pieces: bool = False  # each token as an object, with its text


class PromptJobs(Struct, frozen=True, tag=True):
    """The prompts of one request; the first that is refused ends them."""

    jobs: list[PromptJob]


class TableJob(Struct, frozen=True, tag=True):
    """A question for the table of all tokens."""


class BodyJob(Struct, frozen=True, kw_only=True, tag=True):
    """The large body of a request, which is to be decoded, translated and prepared.

    The two names are `module:attribute` of the server's own code: the struct that the body is
    decoded into, and the function that translates it.
    """

    kind: str
    translate: str
    context: msgspec.Raw  # what the translation knows of the server
    given: tuple[bytes, ...] = ()  # its further arguments
    body: bytes  # the last field, which `pieces` relies on


Job = PromptJobs | TableJob | BodyJob | ShapeJob | AnswerJob


class PreparedPrompt(Struct, frozen=True, kw_only=True, tag=True):
    """The text, its tokens, and the time that each step took."""

    packed_ids: bytes = b""  # four bytes each; empty for a prompt that is too long
    num_tokens: int
    second_from: int = 0  # where the second text of a pair begins
    text: str = ""
    has_same_text: bool = False  # as the job
    template_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    bad_words_token_ids: list[list[int]] = []
    breaker_ids: list[int] = []
    packed_prediction: bytes = b""  # its tokens, four bytes each
    listed_tokens: bytes = b""  # JSON, which goes to the client as it is
    listed_strings: bytes = b"null"
    packed_places: bytes = b""  # of each token's beginning and end, four bytes each
    answer_mask: bytes = b""  # a byte for each token, 1 for those of the assistant's texts

    @property
    def ids(self) -> array[int]:
        """The token ids, as the core takes them."""
        return array("i", self.packed_ids)

    @property
    def token_ids(self) -> list[int]:
        """The token ids, as an answer contains them."""
        return self.ids.tolist()


class Refused(Struct, frozen=True, kw_only=True, tag=True):
    """An error of the conversation, of its template or of the whole job."""

    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400  # of the response


class PreparedPrompts(Struct, frozen=True, tag=True):
    """The prompts in order, up to the first that is refused."""

    prompts: list[PreparedPrompt | Refused]


class ReadBody(Struct, frozen=True, kw_only=True, tag=True):
    """The request of a body, without what only its prompts are made from, and the prompts."""

    request: bytes
    unknown: list[tuple[str, str, tuple[str, ...]]]
    prompts: list[PreparedPrompt | Refused]
    kept: bytes = b""  # what the server keeps of the request


class Ready(Struct, frozen=True, tag=True):
    """The first frame of a worker that has read its tokenizer."""


Answer = Ready | PreparedPrompts | PackedTable | ReadBody | CheckedShape | Refused


def with_texts(
    prompts: list[PreparedPrompt | Refused], jobs: Sequence[PromptJob]
) -> list[PreparedPrompt | Refused]:
    """Return prepared prompts with the texts that they share with their jobs."""
    complete: list[PreparedPrompt | Refused] = []
    for prompt, job in zip(prompts, jobs, strict=False):  # those after a refusal are missing
        if isinstance(prompt, PreparedPrompt) and prompt.has_same_text:
            prompt = msgspec.structs.replace(prompt, text=job.text)
        complete.append(prompt)
    return complete


def default_param(job: PromptJob) -> str:
    """Return the part of the job at fault, for errors that do not name it.

    A dialect gives it the name of its own field.
    """
    if job.conversation is None:
        return "prompt"
    return "messages" if job.conversation.template is None else "template"


def packed(token_ids: Sequence[int]) -> bytes:
    """Return token ids in four bytes each."""
    return array("i", token_ids).tobytes()
