"""The hostile part of a request in a process that can be killed: templates and huge texts.

`python -m octavo.text.prompt_worker` reads jobs from its standard input and answers on its
standard output, one at a time. A frame is four bytes of length and msgpack. The first frame says
where the tokenizer is; each further one is a job, and is answered by a result.
"""

from __future__ import annotations

import resource
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from octavo.text.chat.budget import ChatTemplateError, TemplateLimits
from octavo.text.chat.template import ChatTemplate, choose_template
from octavo.text.tokenizer import Tokenizer
from octavo.text.tokenizer_files import tokenizer_from_directory

MAX_FRAME_BYTES = 256 << 20
ADDRESS_SPACE_BYTES = 8 << 30  # of the process; what asks for more gets a MemoryError
LENGTH = struct.Struct("<I")

# Within these a conversation is rendered where the event loop runs: milliseconds at the worst.
SMALL_CHARACTERS = 16_384
SMALL = TemplateLimits(
    template_characters=1 << 18,
    output_characters=1 << 17,
    built_characters=1 << 20,
    steps=10_000,
)


class Conversation(Struct, frozen=True, kw_only=True):
    """What a chat template is given."""

    messages: list[dict[str, Any]]
    template: str | None = None  # instead of the model's own
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}


class PromptJob(Struct, frozen=True, kw_only=True):
    """A text, or a conversation to be written as one, to be encoded."""

    text: str | None = None
    conversation: Conversation | None = None
    add_special_tokens: bool = True


class PreparedPrompt(Struct, frozen=True, kw_only=True):
    """The text and its tokens, and how long it took."""

    text: str
    token_ids: list[int]
    template_seconds: float = 0.0
    tokenize_seconds: float = 0.0


class Refused(Struct, frozen=True, kw_only=True):
    """Why it cannot be prepared: a fault of the conversation or of its template."""

    message: str


class Workbench:
    """A tokenizer and its templates, compiled once each."""

    def __init__(self, tokenizer: Tokenizer, limits: TemplateLimits | None = None) -> None:
        self.tokenizer = tokenizer
        self._limits = limits or TemplateLimits()
        self._own: ChatTemplate | None = None

    def own_template(self) -> ChatTemplate:
        """The model's own."""
        if self._own is None:
            source = choose_template(self.tokenizer.chat_templates, with_tools=False)
            self._own = ChatTemplate(source, self.tokenizer.special_tokens, limits=self._limits)
        return self._own

    def render(self, conversation: Conversation) -> str:
        """The prompt, as the template writes it."""
        if conversation.template is None:
            template = self.own_template()
        else:
            special = self.tokenizer.special_tokens
            template = ChatTemplate(conversation.template, special, limits=self._limits)
        return template.render(
            _known_roles(conversation.messages, template.source),
            documents=conversation.documents,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            variables=conversation.variables,
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The text's tokens."""
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _known_roles(messages: list[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    """What OpenAI calls the developer is the system to templates that do not know that word."""
    if "developer" in source:
        return messages
    renamed = {"developer": "system"}
    return [{**each, "role": renamed.get(each["role"], each["role"])} for each in messages]


def load_tokenizer_at(path: Path) -> Tokenizer:
    """The tokenizer of a model's directory or of its GGUF file."""
    if path.suffix == ".gguf":  # the reader of these files takes numpy along
        from octavo.loader.gguf.reader import open_gguf
        from octavo.text.gguf_vocabulary import tokenizer_from_gguf

        return tokenizer_from_gguf(open_gguf(path).metadata)
    return tokenizer_from_directory(path)


def do(bench: Workbench, job: PromptJob, clock: Any) -> PreparedPrompt:
    """One job, start to end."""
    began = clock()
    text = job.text
    if job.conversation is not None:
        text = bench.render(job.conversation)
    assert text is not None
    rendered = clock()
    ids = bench.encode(text, add_special_tokens=job.add_special_tokens)
    return PreparedPrompt(
        text=text,
        token_ids=ids,
        template_seconds=rendered - began,
        tokenize_seconds=clock() - rendered,
    )


def main() -> None:
    """Serve jobs until the input ends."""
    import time

    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    path = read_frame(source)
    if path is None:
        return
    bench = Workbench(load_tokenizer_at(Path(path.decode())))
    decode = msgspec.msgpack.Decoder(PromptJob).decode
    write_frame(sink, b"")  # ready
    while (frame := read_frame(source)) is not None:
        answer: PreparedPrompt | Refused
        try:
            answer = do(bench, decode(frame), time.monotonic)
        except ChatTemplateError as error:
            answer = Refused(message=str(error))
        except MemoryError:
            answer = Refused(message="the prompt takes more memory to prepare than there is")
        kind = b"p" if isinstance(answer, PreparedPrompt) else b"r"
        write_frame(sink, kind + msgspec.msgpack.encode(answer))


def read_frame(source: BinaryIO) -> bytes | None:
    """The next frame; None at the end."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are taken")
    return source.read(length)


def write_frame(sink: BinaryIO, frame: bytes) -> None:
    """Send a frame now."""
    sink.write(LENGTH.pack(len(frame)) + frame)
    sink.flush()


if __name__ == "__main__":
    main()
