"""The tokens of prompts, which a server is asked for: KV events name prefixes by their tokens.

A question has little time, few are open at once, and answers are kept for a while. Where there is
none, prefixes are compared as text, as they are without events.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from octavo.options.route import RouteSettings
from octavo.route.client import UpstreamError
from octavo.route.headers import KEYS, request_head
from octavo.route.upstream import Upstream
from octavo.transport.answer import Headers, RequestHead

log = logging.getLogger(__name__)

MOST_OPEN = 16  # questions at once
MOST_BODY_BYTES = 512 << 10  # of a prompt that is asked about
MOST_KEPT_TOKENS = 1 << 20  # of all answers that are kept
ENTRY_TOKENS = 64  # what is kept beside the tokens of one takes the memory of about so many
MOST_TOKENS = 1 << 18  # of one
MOST_ANSWER_BYTES = 8 << 20
PAUSE_SECONDS = 30.0  # for a server that cannot say
# A longer question may be late in any server: one client's must not let others go without tokens.
MOST_QUICK_BYTES = 32 << 10
_CHAT_FIELDS = ("messages", "tools", "chat_template", "chat_template_kwargs")
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Answer(msgspec.Struct):
    tokens: list[int]


_ANSWER = msgspec.json.Decoder(_Answer)


class TokenSource:
    """The tokens of prompts, as servers say."""

    def __init__(self, config: RouteSettings, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._kept: OrderedDict[bytes, array[int]] = OrderedDict()
        self._num_kept = 0  # tokens, and what is kept beside them
        self._num_open = 0
        self._paused: dict[int, float] = {}  # by a server's number: until when

    async def tokens_of(
        self, path: str, body: bytes, given: RequestHead, among: list[Upstream]
    ) -> array[int] | None:
        """Return the tokens of a request's prompt; None if they are not known in time."""
        if len(body) > MOST_BODY_BYTES:
            return None
        question = _question(path, body)
        if question is None or isinstance(question, array):
            return question
        owner = given.headers.get("authorization", "") + given.headers.get("x-api-key", "")
        name = hashlib.blake2b(owner.encode("utf-8", "replace") + b"\0" + question).digest()
        found = self._kept.get(name)
        if found is not None:
            self._kept.move_to_end(name)
            return found
        now = self._clock()
        able = [each for each in among if self._paused.get(each.number, now) <= now]
        if not able or self._num_open >= MOST_OPEN:
            return None
        server = min(able, key=lambda each: each.num_requests)
        self._num_open += 1
        try:
            found = await self._ask(server, question, given)
        finally:
            self._num_open -= 1
        if found is not None:
            self._keep(name, found)
        return found

    def _keep(self, name: bytes, tokens: array[int]) -> None:
        if name in self._kept:  # it was asked twice at once
            return
        self._kept[name] = tokens
        self._num_kept += len(tokens) + ENTRY_TOKENS
        while self._num_kept > MOST_KEPT_TOKENS:
            _, oldest = self._kept.popitem(last=False)
            self._num_kept -= len(oldest) + ENTRY_TOKENS

    async def _ask(
        self, server: Upstream, question: bytes, given: RequestHead
    ) -> array[int] | None:
        try:
            async with asyncio.timeout(self._config.tokenize_seconds):
                status, answer = await self._post(server, question, given)
        except (TimeoutError, UpstreamError) as error:
            log.debug("the server %s gives no tokens: %s", server.name, error)
            is_late = isinstance(error, TimeoutError) or error.is_late
            if not is_late or len(question) <= MOST_QUICK_BYTES:
                self._pause(server)
            return None
        if status in (404, 405, 501):  # it has no such route
            self._pause(server)
        return _tokens(answer) if status == 200 else None

    def _pause(self, server: Upstream) -> None:
        self._paused[server.number] = self._clock() + PAUSE_SECONDS

    async def _post(
        self, server: Upstream, question: bytes, given: RequestHead
    ) -> tuple[int, bytes]:
        seconds = self._config.tokenize_seconds
        connection = await server.pool.take()
        try:
            connection.send(self._head(server, len(question), given), question, seconds)
            head = await connection.head()
            body = bytearray()
            while part := await connection.part():
                body += part
                if len(body) > MOST_ANSWER_BYTES:
                    raise UpstreamError(f"more than {MOST_ANSWER_BYTES} bytes of tokens")
        finally:
            server.pool.give_back(connection)
        return head.status, bytes(body)

    def _head(self, server: Upstream, size: int, given: RequestHead) -> bytes:
        address, key = server.address, self._config.upstream_api_key
        own: Headers = [
            (b"host", address.authority.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % size),
        ]
        if key:
            own.append((b"authorization", b"Bearer " + key.encode()))
        else:
            own += [
                (name.encode(), given.headers[name].encode("latin-1"))
                for name in sorted(KEYS & given.headers.keys())
            ]
        line = b"POST %b/tokenize HTTP/1.1" % address.base.encode()
        return request_head(line, RequestHead("POST", "/tokenize", {}), own)


def _question(path: str, body: bytes) -> bytes | array[int] | None:
    """Return the body of the question for a request's tokens, or the tokens that it has itself."""
    try:
        fields = _OBJECT.decode(body)
        asked: dict[str, Any] = {}
        if path == _CHAT:
            asked = {name: fields[name] for name in _CHAT_FIELDS if name in fields}
            if "messages" not in asked:
                return None
            asked["add_generation_prompt"] = True
        elif path == _COMPLETIONS:
            prompt = msgspec.json.decode(fields["prompt"], type=str | list[int])
            if not isinstance(prompt, str):
                return array("i", prompt)
            asked["prompt"] = prompt
        else:
            return None
        if "model" in fields:
            asked["model"] = fields["model"]
        return msgspec.json.encode(asked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, OverflowError):
        return None


def _tokens(answer: bytes) -> array[int] | None:
    """Return the tokens of an answer; None if it is none."""
    try:
        tokens = _ANSWER.decode(answer).tokens
        return array("i", tokens) if 0 < len(tokens) <= MOST_TOKENS else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        return None
