"""What a router reads of a request's body: the model, the session, and names of its prefixes.

The text of a prompt is compared as its client has written it, in pieces of so many bytes. Who sends
a conversation again with another turn writes the same bytes before it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from octavo.routing import GRAIN_TOKENS
from octavo.transport.errors import invalid

BYTES_A_TOKEN = 4  # about, of most tokenizers
PIECE_BYTES = GRAIN_TOKENS * BYTES_A_TOKEN
MAX_COMPARED_BYTES = 512 << 10  # of a prompt; what is behind counts as new
MAX_FAST_BYTES = 256 << 10  # of a body that is read beside others
MAX_NAME_BYTES = 4096  # of a model, as JSON
MAX_SESSION_BYTES = 1024
_UNSET = msgspec.Raw()
_NULL = b"null"


class _Body(msgspec.Struct):
    """The fields of all dialects that the choice of a server depends on."""

    model: msgspec.Raw = _UNSET
    user: msgspec.Raw = _UNSET
    prompt_cache_key: msgspec.Raw = _UNSET
    cache_salt: msgspec.Raw = _UNSET
    # What prompts are made of, in the order in which templates write it.
    tools: msgspec.Raw = _UNSET
    system: msgspec.Raw = _UNSET
    instructions: msgspec.Raw = _UNSET
    messages: msgspec.Raw = _UNSET
    prompt: msgspec.Raw = _UNSET
    input: msgspec.Raw = _UNSET
    inputs: msgspec.Raw = _UNSET


_DECODER = msgspec.json.Decoder(_Body)


class Asked(NamedTuple):
    """A request, as far as the choice of a server depends on it."""

    model: str  # empty: the request names none
    session: bytes  # empty: it belongs to none
    keys: array[int]  # the names of the prompt's prefixes, one for each piece
    num_tokens: int  # of the prompt, about
    tokens: array[int] | None = None  # of the prompt, where they are known
    adapter: str | None = ""  # by which events name it; None: they say nothing of this request

    @property
    def size(self) -> int:
        """The tokens of the prompt, as exactly as they are known."""
        return self.num_tokens if self.tokens is None else len(self.tokens)


class BodyReader:
    """The reader of bodies, one large one at a time."""

    def __init__(self) -> None:
        self._large = asyncio.Lock()

    async def read(self, body: bytes, headers: Mapping[str, str], tenant: str) -> Asked:
        """Return what a body asks for; prefixes are shared within a tenant alone."""
        if len(body) <= MAX_FAST_BYTES:
            return _read(body, headers, tenant)
        async with self._large:
            await asyncio.sleep(0)  # others go first
            return _read(body, headers, tenant)


def _read(body: bytes, headers: Mapping[str, str], tenant: str) -> Asked:
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid("the body is not a JSON object") from None
    prompt = [
        memoryview(each)
        for each in (
            *(found.tools, found.system, found.instructions, found.messages),
            *(found.prompt, found.input, found.inputs),
        )
    ]
    model = _model(found.model)
    root = hash((tenant, model, bytes(memoryview(found.cache_salt)[:MAX_SESSION_BYTES])))
    num_tokens = sum(map(len, prompt)) // BYTES_A_TOKEN
    adapter = None if len(memoryview(found.cache_salt)) else ""
    names = _names(root, prompt)
    return Asked(model, _session(headers, found), names, num_tokens, adapter=adapter)


def _model(raw: msgspec.Raw) -> str:
    size = len(memoryview(raw))
    if size > MAX_NAME_BYTES:
        raise invalid("model is longer than any name of a model", "model")
    try:
        return (msgspec.json.decode(raw, type=str | None) or "") if size else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid("model: expected text", "model") from None


def _session(headers: Mapping[str, str], body: _Body) -> bytes:
    """Return the name of the session that a request belongs to, which its client chooses."""
    named = {
        "X-Session-ID": memoryview(headers.get("x-session-id", "").encode("latin-1")),
        "prompt_cache_key": memoryview(body.prompt_cache_key),
        "user": memoryview(body.user),
    }
    for kind, name in named.items():
        if len(name) > MAX_SESSION_BYTES:
            raise invalid(f"{kind} is longer than {MAX_SESSION_BYTES} bytes", kind)
        if len(name) and bytes(name) != _NULL:
            return kind.encode() + b" " + bytes(name)
    return b""


def _names(root: int, prompt: list[memoryview]) -> array[int]:
    """Return the name of each whole piece of a prompt, and of all pieces before it."""
    left = MAX_COMPARED_BYTES
    parts = []
    for each in prompt:
        parts.append(each[:left])
        left -= len(parts[-1])
    text = b"".join(parts)
    names, last = array("q"), root
    for begin in range(0, len(text) - PIECE_BYTES + 1, PIECE_BYTES):
        last = hash((last, text[begin : begin + PIECE_BYTES]))
        names.append(last)
    return names
