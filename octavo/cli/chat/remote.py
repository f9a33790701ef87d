"""A server that is asked over HTTP: any that has OpenAI's chat completions."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from octavo.cli.chat.endpoint import (
    MAX_ERROR_BYTES,
    Body,
    EndpointError,
    Events,
    Take,
    error_of,
    shown,
)
from octavo.cli.parsing import UsageError
from octavo.nearest import nearest

_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 600.0  # a server may compute a long prompt before it sends anything
_MAX_LIST_BYTES = 1 << 20
_MAX_PART_BYTES = 1 << 16


class RemoteServer:
    """A server; each request has a connection of its own, which ends with the answer."""

    def __init__(self, url: str, api_key: str = "") -> None:
        self._place = _place(url)
        self._root = self._place.path.rstrip("/") or "/v1"
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    def close(self) -> None:
        """Return: there is no connection between two answers."""

    def check_model(self, model: str) -> None:
        """Raise UsageError, with the nearest names, for a model that the server does not list."""
        with self._response("GET", "/models", None) as response:
            body = self._read(response, _MAX_LIST_BYTES)
            if response.status in (404, 405, 501):
                return  # it has no list
            if response.status != 200:
                raise error_of(response.status, body[:MAX_ERROR_BYTES])
        try:
            names = [str(each["id"]) for each in json.loads(body)["data"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            return
        if names and model not in names:
            near = [shown(each) for each in nearest(model, names, most=3) or names[:3]]
            raise UsageError(
                f"the server has no model {model[:100]!r}; did you mean {' or '.join(near)}?"
            )

    def chat(self, body: Body, take: Take) -> None:
        """Send a request, and pass each chunk of the answer on; leaving ends the connection."""
        events = Events(take)
        with self._response("POST", "/chat/completions", json.dumps(body).encode()) as response:
            if response.status != 200:
                raise error_of(response.status, self._read(response, MAX_ERROR_BYTES))
            while not events.is_done:
                part = self._next(response, _MAX_PART_BYTES)
                if not part:
                    break
                events.feed(part)
        events.finish()

    def _read(self, response: http.client.HTTPResponse, limit: int) -> bytes:
        """Return a whole body, or its beginning."""
        parts: list[bytes] = []
        while limit > 0 and (part := self._next(response, limit)):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)

    def _next(self, response: http.client.HTTPResponse, limit: int) -> bytes:
        """Return what has come of a body; b"" at its end."""
        try:
            return response.read1(min(limit, _MAX_PART_BYTES))
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None

    @contextlib.contextmanager
    def _response(
        self, method: str, path: str, body: bytes | None
    ) -> Iterator[http.client.HTTPResponse]:
        """Connect and send a request; yield its response, and close the connection."""
        host, port = self._place.hostname or "", self._place.port
        connection: http.client.HTTPConnection
        if self._place.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                host, port, timeout=_CONNECT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=_CONNECT_SECONDS)
        try:
            try:
                connection.connect()
                connection.sock.settimeout(_SILENCE_SECONDS)
                connection.request(method, self._root + path, body, self._headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException, UnicodeError) as error:
                raise self._lost(error) from None
            yield response
        finally:
            connection.close()

    def _lost(self, error: Exception) -> EndpointError:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return EndpointError(
            f"the server at {self._place.scheme}://{self._place.netloc} cannot be asked: "
            f"{shown(why).lower()}; is it running there?"
        )


def _place(url: str) -> SplitResult:
    """Return the parts of a URL; raise UsageError for one that names no server."""
    form = "write it as http://HOST:PORT or https://HOST/v1"
    try:
        place = urlsplit(url)
        is_good = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:
        is_good = False
    if not is_good or not url.isprintable() or " " in url:
        raise UsageError(f"--url {url[:200]!r} is the address of no server; {form}")
    if place.username is not None or place.password is not None:
        raise UsageError("--url has no place for a password; put the key into OCTAVO_API_KEY")
    if place.query or place.fragment:
        raise UsageError(f"--url {url[:200]!r} has a part behind the path; {form}")
    return place
