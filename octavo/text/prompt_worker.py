"""The process that renders chat templates and tokenises prompts, so that a server can kill it.

It reads a model's tokenizer and then answers the jobs that come over its standard input, which is a
socket, one at a time. A frame is four bytes of length and msgpack; the first one says that the
worker is ready, or why it will never be. The server ends a job that takes too long. The program
that runs here is `octavo.server.worker_program`.

The server imports this module for the jobs, so it imports the template engine only where it runs.
"""

from __future__ import annotations

import gc
import importlib
import signal
import struct
import time
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from octavo.confine.worker import confine_worker, limit_memory
from octavo.formats.description import ToolFormat
from octavo.grammar.checked import CheckedShape, ShapeJob
from octavo.observe.collection import no_collection
from octavo.observe.machine import give_back_freed
from octavo.text.answer_shape import AnswerJob
from octavo.text.chat.answer_mask import Place, mask_of
from octavo.text.chat.fewer_turns import with_fewer_turns
from octavo.text.chat.messages import ChatTemplateError, ContentFormat, check_surrogates
from octavo.text.chat.system_first import render_with_system
from octavo.text.pairs import Pair, Part, encode_pair, encode_parts
from octavo.text.pieces import (
    Infill,
    InfillError,
    decoded,
    infill_tokens,
    with_pieces,
)
from octavo.text.token_bytes import TokenizerError
from octavo.text.token_table import PackedTable
from octavo.text.tokenizer import Tokenizer, valid_text
from octavo.text.tokenizer_files import load_tokenizer_at

if TYPE_CHECKING:
    from octavo.text.chat.template import ChatTemplate

LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 256 << 20
MAX_TEMPLATES = 16  # compiled templates that are kept
LOAD_BYTES = 4 << 30  # of reading the tokenizer
LOAD_SECONDS = 60.0  # for it
LARGE_FRAME_BYTES = 1 << 18  # larger jobs leave memory behind that is worth returning
# Modules that templates make Python import; a confined process can import nothing more.
_IMPORTED_LATE = (
    "encodings.unicode_escape",
    "encodings.utf_16_le",
    "html",
    "jinja2.debug",
    "textwrap",
)
MAX_LISTED_TOKENS = 1 << 20  # of one prompt
MAX_MESSAGE_CHARACTERS = 2000  # of an error

_encode = msgspec.msgpack.Encoder().encode


class Conversation(Struct, frozen=True, kw_only=True):
    """The arguments of a chat template."""

    messages: list[dict[str, Any]]
    template: str | None = None  # None: the model's own
    tools: list[dict[str, Any]] | None = None
    tool_format: ToolFormat | None = None  # of what the template does not know of tools
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    content_format: ContentFormat = "auto"
    variables: dict[str, Any] = {}
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


class PromptMaker:
    """A tokenizer and the chat templates that were used last, compiled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._compiled = lru_cache(MAX_TEMPLATES)(self._compile)

    def make_all(self, jobs: Sequence[PromptJob]) -> list[PreparedPrompt | Refused]:
        """Prepare prompts in order; a refusal is the last."""
        prompts: list[PreparedPrompt | Refused] = []
        for job in jobs:
            prompts.append(self._made_or_refused(job))
            if isinstance(prompts[-1], Refused):
                break
        return prompts

    def make(self, job: PromptJob) -> PreparedPrompt:
        """Render, tokenise and cut; the text of a job that has one is not sent back."""
        began = time.monotonic()
        text = job.text
        answers = list[Place]() if job.wants_answers else None
        if job.conversation is not None:
            text = self._render(job.conversation, answers)
        elif text is not None and job.text_tokens is not None:
            text = self.tokenizer.beginning(text, job.text_tokens)
        rendered = time.monotonic()
        token_ids, second_from, places = self._tokenised(job, text)
        encode = self.tokenizer.encode
        if job.fit_tokens is not None and len(token_ids) > job.fit_tokens:
            tokenise = partial(encode, add_special_tokens=job.add_special_tokens)
            text, token_ids = with_fewer_turns(
                job.conversation, self._render, tokenise, job.fit_tokens
            )
        bad_words = [encode(word, add_special_tokens=False) for word in job.bad_words]
        is_cut = job.keep_tokens is not None and len(token_ids) > job.keep_tokens
        if is_cut:
            assert job.keep_tokens is not None
            start = len(token_ids) - job.keep_tokens if job.keeps_end else 0
            kept = slice(start, start + job.keep_tokens)
            token_ids, places = token_ids[kept], places[kept]
        is_too_long = job.max_tokens is not None and len(token_ids) > job.max_tokens
        if is_too_long or not job.wants_text:
            text = ""
        elif job.keeps_text:
            text = job.text or ""
        elif is_cut or text is None or (job.keeps_frame and len(token_ids) == job.keep_tokens):
            text = decoded(self.tokenizer, token_ids)
        has_same_text = bool(text) and text is job.text
        prepared = PreparedPrompt(
            text="" if has_same_text else text,
            has_same_text=has_same_text,
            packed_ids=b"" if is_too_long or job.lists_tokens else packed(token_ids),
            num_tokens=len(token_ids),
            second_from=second_from,
            bad_words_token_ids=bad_words,
            packed_places=packed(list(chain(*places)))
            if job.wants_places and not is_too_long
            else b"",
            answer_mask=b"" if answers is None else mask_of(places, answers),
            template_seconds=rendered - began,
            tokenize_seconds=time.monotonic() - rendered,
        )
        return self._listed(prepared, job, token_ids) if job.lists_tokens else prepared

    def _tokenised(
        self, job: PromptJob, text: str | None
    ) -> tuple[Sequence[int], int, list[Place]]:
        """Return a prompt's tokens, where the second of a pair begins, and the tokens' places."""
        tokenizer, adds = self.tokenizer, job.add_special_tokens
        if job.pair is not None:
            return *self._encode_pair(job.pair, job.keep_tokens), []
        if job.parts:
            return encode_parts(tokenizer, job.parts), 0, []
        if text is None:
            return array("i", job.packed_ids), 0, []
        if job.keeps_frame:
            token_ids, _ = tokenizer.encode_framed(
                text, None, job.keep_tokens, add_special_tokens=adds, keeps_end=job.keeps_end
            )
            return token_ids, 0, []
        if job.infill is not None:
            return infill_tokens(tokenizer, text, job.infill, add_special_tokens=adds), 0, []
        if job.wants_places or job.wants_answers:
            token_ids, places = tokenizer.encode_with_places(text, add_special_tokens=adds)
            return token_ids, 0, places
        return tokenizer.encode(text, add_special_tokens=adds), 0, []

    def _made_or_refused(self, job: PromptJob) -> PreparedPrompt | Refused:
        try:
            return self.make(job)
        except ChatTemplateError as error:
            # A template chooses its length and its characters.
            message = valid_text(str(error)[:MAX_MESSAGE_CHARACTERS])
            return Refused(
                message=message, param=error.param or default_param(job), code=error.code
            )
        except InfillError as error:
            return Refused(message=str(error), param="suffix", code="unsupported_parameter")
        except TokenizerError as error:
            message = str(error)[:MAX_MESSAGE_CHARACTERS]
            return Refused(message=message, param=default_param(job))

    def _listed(
        self, prepared: PreparedPrompt, job: PromptJob, token_ids: Sequence[int]
    ) -> PreparedPrompt:
        """Add the lists of tokens that an answer contains."""
        if len(token_ids) > MAX_LISTED_TOKENS:
            raise TokenizerError(
                f"the prompt has {len(token_ids)} tokens; at most {MAX_LISTED_TOKENS} are listed"
            )
        to_json = msgspec.json.encode
        strings: list[str] | None = None
        if job.lists_strings:
            strings = [self.tokenizer.id_to_token(token) or "" for token in token_ids]
        listed: list[Any] = list(token_ids)
        if job.lists_pieces:
            listed = with_pieces(self.tokenizer, token_ids)
        return msgspec.structs.replace(
            prepared, listed_tokens=to_json(listed), listed_strings=to_json(strings)
        )

    def _render(self, conversation: Conversation, answers: list[Place] | None = None) -> str:
        tool_format = conversation.tool_format
        shows_tools = bool(conversation.tools) and not (tool_format and tool_format.is_generic)
        template = self._compiled(conversation.template, shows_tools)
        if tool_format is None:
            template.check_tools(conversation.messages, conversation.tools)
        if answers is not None and not template.marks_answers:
            raise ChatTemplateError(
                "the chat template does not mark the assistant's texts with {% generation %}; "
                "leave return_assistant_tokens_mask out, or use a template that does",
                param="return_assistant_tokens_mask",
            )
        render = partial(
            template.render,
            tools=conversation.tools,
            tool_format=tool_format,
            documents=conversation.documents,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=conversation.variables,
            answers=answers,
            content_format=conversation.content_format,
        )
        text = render_with_system(
            conversation.messages, render, moves_system=conversation.moves_system
        )
        check_surrogates(text)
        return text

    def _encode_pair(self, pair: Pair, most_tokens: int | None) -> tuple[list[int], int]:
        return encode_pair(
            self.tokenizer, pair, lambda source: self._compiled(source, False), most_tokens
        )

    def _compile(self, source: str | None, with_tools: bool) -> ChatTemplate:
        from octavo.text.chat.template import ChatTemplate, choose_template

        if source is None:
            source = choose_template(self.tokenizer.chat_templates, with_tools=with_tools)
        return ChatTemplate(source, self.tokenizer.special_tokens)


def pieces(job: Job) -> tuple[bytes, ...]:
    """Return the frame of a job in pieces; a large body is one of them, and is not copied."""
    if not isinstance(job, BodyJob):
        return (_encode(job),)
    head = _encode(msgspec.structs.replace(job, body=b""))
    # The end is the empty body in msgpack: c4 and a length of 0. c6 has a length of four bytes.
    assert head.endswith(b"\xc4\x00")
    return head[:-2] + b"\xc6" + len(job.body).to_bytes(4, "big"), job.body


# The server's way to read a large body.
ReadBodies = Callable[[PromptMaker, BodyJob], ReadBody | Refused]


# What answers the jobs of one worker.
Answers = Callable[[Job], Answer]


def prompt_answers(path: Path, read_body: ReadBodies) -> Answers:
    """Read the tokenizer of a model; return what answers the jobs that need it."""
    import octavo.text.chat.template  # noqa: F401 (the first chat need not wait)

    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    return partial(_answer, PromptMaker(load_tokenizer_at(path)), read_body)


def serve_jobs(seconds: float, num_bytes: int, load: Callable[[], Answers]) -> None:
    """Load what answers the jobs, then answer them until the server closes the socket.

    After `seconds` in one job the process ends itself, should the server be gone. A job may take
    `num_bytes` of memory.
    """
    with open(0, "rb") as source, open(0, "wb", closefd=False) as sink:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, LOAD_SECONDS)
        limit_memory(LOAD_BYTES, is_final=False)
        try:
            with no_collection():
                answer_to = load()
        except (ValueError, OSError, MemoryError) as error:
            write_frame(sink, _encode(Refused(message=_why_unusable(error))))
            return
        decode: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
        _confine(num_bytes)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(sink, _encode(Ready()))
        while (frame := read_frame(source)) is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                answer = answer_to(decode.decode(frame))
            except MemoryError:
                mebibytes = num_bytes >> 20
                answer = Refused(message=f"the prompt takes more than {mebibytes} MiB to prepare")
            signal.setitimer(signal.ITIMER_REAL, 0)
            write_frame(sink, _encode(answer))
            if len(frame) > LARGE_FRAME_BYTES or isinstance(answer, Refused):
                del frame, answer
                give_back_freed()


def _answer(maker: PromptMaker, read_body: ReadBodies, job: Job) -> Answer:
    try:
        match job:
            case PromptJobs():
                return PreparedPrompts(maker.make_all(job.jobs))
            case TableJob():
                return maker.tokenizer.pack()
            case BodyJob():
                return read_body(maker, job)
            case ShapeJob() | AnswerJob():
                raise AssertionError("another worker checks shapes")
    except TokenizerError as error:
        return Refused(message=str(error))


def _why_unusable(error: Exception) -> str:
    """Return what is wrong with the tokenizer, in one line."""
    if isinstance(error, MemoryError):
        return f"the tokenizer takes more than {LOAD_BYTES >> 30} GiB of memory to read"
    return valid_text(str(error)[:MAX_MESSAGE_CHARACTERS])


def _confine(num_bytes: int) -> None:
    """Limit this process to what a job may take; all that was loaded stays."""
    gc.collect()
    gc.freeze()
    give_back_freed()
    confine_worker(num_bytes)


def read_frame(source: BinaryIO) -> bytes | None:
    """Read the next frame; return None at the end of the stream."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return source.read(length)


def write_frame(sink: BinaryIO, frame: bytes) -> None:
    """Write a frame and flush it."""
    sink.write(LENGTH.pack(len(frame)))
    sink.write(frame)
    sink.flush()
