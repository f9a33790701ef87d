"""Chunks written from a template are identical to the encoded struct."""

from __future__ import annotations

import pytest

from octavo.dialects.common.dialect import frame
from octavo.dialects.common.schema.chat import ChatChunk, ChunkChoice, Delta
from octavo.dialects.common.schema.completion import CompletionChunk, CompletionChunkChoice
from octavo.dialects.common.writer import TEXT, Template
from octavo.transport.exchange import encode

TEXTS = [" plain", "", '"quoted" \\', "\n\t\r\x00\x1f\x7f", "é€𝄞\ufffd\u2028", "%b %s {}", "\0"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", ["m", 'a "b" \0\\', "{text}"])
def test_a_chunk_from_a_template_is_the_struct(text: str, model: str) -> None:
    def chat(content: str) -> ChatChunk:
        choice = ChunkChoice(index=3, delta=Delta(content=content))
        return ChatChunk(
            id="chatcmpl-1", created=7, model=model, choices=[choice], system_fingerprint="o-1"
        )

    def completion(text: str) -> CompletionChunk:
        choice = CompletionChunkChoice(index=3, text=text)
        return CompletionChunk(
            id="cmpl-1", created=7, model=model, choices=[choice], system_fingerprint="o-1"
        )

    assert encode(text).join(Template(chat(TEXT)).sides) == frame(encode(chat(text)))
    assert encode(text).join(Template(completion(TEXT)).sides) == frame(encode(completion(text)))
