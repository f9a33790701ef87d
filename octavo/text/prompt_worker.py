"""The process that renders chat templates and tokenises prompts, so that a server can kill it.

`python -m octavo.text.prompt_worker SECONDS PATH` reads the tokenizer at PATH and then answers the
jobs that come over its standard input, which is a socket, one at a time. A frame is four bytes of
length and msgpack; an empty frame says that the worker is ready. The server ends a job that takes
too long; SECONDS is the time after which the worker ends itself, should the server be gone.

The server imports this module for the jobs, so it imports the template engine only where it runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import signal
import struct
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from octavo.confine.process import confine, give_up_privileges
from octavo.observe.collection import no_collection
from octavo.text.chat.messages import ChatTemplateError
from octavo.text.tokenizer import Tokenizer, valid_text
from octavo.text.tokenizer_files import tokenizer_from_directory

if TYPE_CHECKING:
    from octavo.text.chat.template import ChatTemplate

LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 256 << 20
MAX_TEMPLATES = 16  # compiled templates that are kept
# The memory of one job. Text that is tokenised within the time limit takes at most half of it.
JOB_BYTES = 2 << 30
LARGE_FRAME_BYTES = 1 << 18  # larger jobs leave memory behind that is worth returning
# Modules that templates make Python import; a confined process can import nothing more.
_IMPORTED_LATE = (
    "encodings.unicode_escape",
    "encodings.utf_16_le",
    "html",
    "jinja2.debug",
    "textwrap",
)
MAX_MESSAGE_CHARACTERS = 2000  # of an error


class Conversation(Struct, frozen=True, kw_only=True):
    """The arguments of a chat template."""

    messages: list[dict[str, Any]]
    template: str | None = None  # None: the model's own
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}


class PromptJob(Struct, frozen=True, kw_only=True):
    """A text to tokenise, or a conversation to render and tokenise."""

    text: str | None = None
    conversation: Conversation | None = None
    add_special_tokens: bool = True
    bad_words: list[str] = []  # tokenised each on its own


class PreparedPrompt(Struct, frozen=True, kw_only=True, tag=True):
    """The text, its tokens, and the time that each step took."""

    text: str
    token_ids: list[int]
    template_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    bad_words_token_ids: list[list[int]] = []


class Refused(Struct, frozen=True, kw_only=True, tag=True):
    """An error of the conversation or of its template."""

    message: str
    param: str | None = None
    code: str | None = None


class PromptMaker:
    """A tokenizer and the chat templates that were used last, compiled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiled = lru_cache(MAX_TEMPLATES)(self._compile)

    def make(self, job: PromptJob) -> PreparedPrompt:
        """Render and tokenise; the text of a job that has one is not sent back."""
        began = time.monotonic()
        if job.conversation is None:
            assert job.text is not None
            text = job.text
        else:
            text = valid_text(self._render(job.conversation))  # msgpack has no lone surrogates
        rendered = time.monotonic()
        encode = self._tokenizer.encode
        token_ids = encode(text, add_special_tokens=job.add_special_tokens)
        bad_words = [encode(word, add_special_tokens=False) for word in job.bad_words]
        return PreparedPrompt(
            text="" if job.conversation is None else text,
            token_ids=token_ids,
            bad_words_token_ids=bad_words,
            template_seconds=rendered - began,
            tokenize_seconds=time.monotonic() - rendered,
        )

    def _render(self, conversation: Conversation) -> str:
        return self._compiled(conversation.template).render(
            conversation.messages,
            documents=conversation.documents,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=conversation.variables,
        )

    def _compile(self, source: str | None) -> ChatTemplate:
        from octavo.text.chat.template import ChatTemplate, choose_template

        if source is None:
            source = choose_template(self._tokenizer.chat_templates, with_tools=False)
        return ChatTemplate(source, self._tokenizer.special_tokens)


def load_tokenizer_at(path: Path) -> Tokenizer:
    """Load the tokenizer of a model's directory or of its GGUF file."""
    if path.suffix == ".gguf":  # imported here because the reader of these files imports numpy
        from octavo.loader.gguf.reader import open_gguf
        from octavo.text.gguf_vocabulary import tokenizer_from_gguf

        return tokenizer_from_gguf(open_gguf(path).metadata)
    return tokenizer_from_directory(path)


def main() -> None:
    """Answer jobs until the server closes the socket."""
    import octavo.text.chat.template  # noqa: F401 (so that the first conversation need not wait)

    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    seconds, path = float(sys.argv[1]), Path(sys.argv[2])
    with no_collection():
        maker = PromptMaker(load_tokenizer_at(path))
    decode = msgspec.msgpack.Decoder(PromptJob).decode
    encode = msgspec.msgpack.Encoder().encode
    _confine()
    with open(0, "rb") as source, open(0, "wb", closefd=False) as sink:
        write_frame(sink, b"")  # ready
        while (frame := read_frame(source)) is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            answer = _answer(maker, decode(frame))
            signal.setitimer(signal.ITIMER_REAL, 0)
            write_frame(sink, encode(answer))
            if len(frame) > LARGE_FRAME_BYTES or isinstance(answer, Refused):
                del frame, answer
                _return_memory()


def _answer(maker: PromptMaker, job: PromptJob) -> PreparedPrompt | Refused:
    try:
        return maker.make(job)
    except ChatTemplateError as error:
        # A template chooses its length and its characters.
        message = valid_text(str(error)[:MAX_MESSAGE_CHARACTERS])
        return Refused(message=message, param=error.param, code=error.code)
    except MemoryError:
        return Refused(message=f"the prompt takes more than {JOB_BYTES >> 30} GiB to prepare")


def _confine() -> None:
    """Limit this process to what a job may take, and make it the first to end without memory.

    The server's log and `octavo doctor` say where the kernel cannot refuse it files and network.
    """
    gc.collect()
    gc.freeze()  # all that was loaded stays
    _return_memory()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + JOB_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(OSError):  # not every container allows it
        Path("/proc/self/oom_score_adj").write_text("1000")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)  # a stack printed at a crash could hold a prompt
    os.close(nothing)
    give_up_privileges()
    confine(may_read=False)


def _return_memory() -> None:
    """Return freed memory to the system; the allocator would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


def read_frame(source: BinaryIO) -> bytes | None:
    """Read the next frame; return None at the end of the stream."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return source.read(length)


def write_frame(sink: BinaryIO, frame: bytes) -> None:
    """Write a frame and flush it."""
    sink.write(LENGTH.pack(len(frame)) + frame)
    sink.flush()


if __name__ == "__main__":
    main()
