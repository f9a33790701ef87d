"""Asks a server time and again whether it is ready, and which models it has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from octavo.options.route import RouteSettings
from octavo.route.client import UpstreamError
from octavo.route.headers import request_head
from octavo.route.upstream import Upstream
from octavo.transport.answer import Headers, RequestHead

log = logging.getLogger(__name__)

_MODELS = "/v1/models"
MAX_ANSWER_BYTES = 4 << 20  # of the list of models
MAX_MODELS = 4096
MAX_NAME_CHARACTERS = 512


class _List(msgspec.Struct):
    """A list of models; their cards are passed on as they are."""

    data: list[msgspec.Raw]


_DECODER = msgspec.json.Decoder(_List)


class Watch:
    """The questions to one server, in order, as long as the router runs."""

    def __init__(
        self,
        upstream: Upstream,
        config: RouteSettings,
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self._upstream = upstream
        self._config = config
        self._clock = clock
        self._on_change = on_change
        self._ask_models_at = clock()

    async def run(self) -> None:
        """Ask again and again."""
        while True:
            await asyncio.sleep(self._config.health_seconds)
            await self.look()

    async def look(self) -> None:
        """Ask once; how long that takes is bounded."""
        upstream, was_well = self._upstream, self._upstream.is_well
        trouble = await self._trouble()
        if trouble is not None:
            # One that is slow has not lost what it has cached; of any other that is not known.
            upstream.note_trouble(str(trouble), keeps_cache=trouble.is_late)
        else:
            if not was_well or self._clock() >= self._ask_models_at:
                await self._ask_models()
            upstream.note_well()
        if upstream.is_well != was_well:
            state = "is ready" if upstream.is_well else f"is not ready: {trouble}"
            log.log(
                logging.INFO if upstream.is_well else logging.WARNING,
                *("the server %s %s", upstream.name, state),
            )
        self._on_change()

    async def _trouble(self) -> UpstreamError | None:
        """Return why the server is not ready; None if it is.

        One without this route answers too, which is all that can be learnt of it.
        """
        try:
            status, _ = await self._get(self._config.health_path)
        except UpstreamError as error:
            return error
        if status in (200, 204, 404):
            return None
        return UpstreamError(f"it answers with the status {status}")

    async def _ask_models(self) -> None:
        """Ask which models it has; keep the old list if it does not say."""
        try:
            status, body = await self._get(_MODELS)
        except UpstreamError as error:
            self._note_nameless(str(error))
            return
        found = models_of(body) if status == 200 else None
        if found is None:
            key = self._about_key() if status in (401, 403) else ""
            self._note_nameless(f"GET {_MODELS} is answered with the status {status}{key}")
        else:
            self._upstream.models, self._upstream.nameless = found, ""
        self._ask_models_at = self._clock() + self._config.models_seconds

    def _about_key(self) -> str:
        if self._config.upstream_api_key:
            return "; the key of --upstream-api-key-file is none of its keys"
        return "; it names them for a key, which --upstream-api-key-file gives"

    def _note_nameless(self, why: str) -> None:
        """Note why it is not known which models there are; the log says it once."""
        upstream = self._upstream
        if why != upstream.nameless:
            upstream.nameless = why
            log.warning("the server %s does not name its models: %s", upstream.name, why)

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of a short answer."""
        upstream, seconds = self._upstream, self._config.health_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                # A new one, since the end of an old one would look like trouble of the server.
                connection = await upstream.pool.connect()
                try:
                    connection.send(self._request(path), b"", seconds)
                    head = await connection.head()
                    body = bytearray()
                    while part := await connection.part():
                        body += part
                        if len(body) > MAX_ANSWER_BYTES:
                            raise UpstreamError(f"more than {MAX_ANSWER_BYTES} bytes at {path}")
                finally:
                    connection.close()
        except TimeoutError:
            raise UpstreamError(f"no answer within {seconds:g} s", is_late=True) from None
        return head.status, bytes(body)

    def _request(self, path: str) -> bytes:
        address = self._upstream.address
        own: Headers = [(b"host", address.authority.encode())]
        if self._config.upstream_api_key:
            own.append((b"authorization", b"Bearer " + self._config.upstream_api_key.encode()))
        line = b"GET %b%b HTTP/1.1" % (address.base.encode(), path.encode())
        return request_head(line, RequestHead("GET", path, {}), own)


def models_of(body: bytes) -> dict[str, bytes] | None:
    """Return the cards of a list of models by their names; None if it is no such list."""
    found: dict[str, bytes] = {}
    try:
        for raw in _DECODER.decode(body).data[:MAX_MODELS]:
            card: Any = msgspec.json.decode(raw)  # which checks the whole of it
            name = card.get("id") if isinstance(card, dict) else None
            if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS:
                found.setdefault(name, bytes(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found
