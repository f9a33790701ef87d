"""The model that a request names, found before the request is read as a whole."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from msgspec import Struct

from octavo.dialects.ollama.dialect import OLLAMA
from octavo.dialects.ollama.schema import TAG
from octavo.serving.exchange import Exchange
from octavo.serving.schema.decode import MAX_FAST_BYTES, why_malformed
from octavo.serving.schema.queries import query_of
from octavo.transport.errors import ApiError, invalid

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([+-]?)((?:\d{1,9}(?:\.\d{1,9})?(?:ns|us|µs|ms|s|m|h)){1,8})")
_PART = re.compile(r"([\d.]+)([a-zµ]+)")
_FOR_EVER = 100 * 365 * 86_400.0  # so many seconds, and no date would be shown for more
_MOST_CHARACTERS = 64  # of a duration
_MOST_BYTES = 4096  # of a name, as the body writes it


class _Named(Struct):
    """The part of a body that says which model it is for; all else is skipped, not built."""

    model: msgspec.Raw = msgspec.Raw(b"null")
    name: msgspec.Raw = msgspec.Raw(b"null")  # the older form in Ollama's dialect
    keep_alive: msgspec.Raw = msgspec.Raw(b"null")


_DECODER = msgspec.json.Decoder(_Named)


class Wanted(Struct, frozen=True):
    """The name of a model, and how long it is kept without requests, if the request says so."""

    name: str
    keep_seconds: float | None = None
    keeps: bool = False  # the request says how long; None is for ever


class Bodies:
    """The reading of names in bodies: of large ones one at a time, with a turn for others."""

    def __init__(self) -> None:
        self._large = asyncio.Lock()

    async def wanted(self, exchange: Exchange, missing: str) -> Wanted:
        """Return what a request names, in its address or in its body, which stays unread.

        Raise ApiError where there is no name; `missing` says which there are.
        """
        body = b""
        if exchange.method == "POST":  # its client can be watched once the body was read
            body = await exchange.body()
            exchange.unread(body)
        of_query = query_of(exchange).get("model")
        if of_query:
            return Wanted(of_query)
        if exchange.method != "POST":
            raise invalid(f"model is missing in the address (?model=NAME): {missing}", "model")
        if len(body) <= MAX_FAST_BYTES:
            named = _decoded(body)
        else:
            async with self._large:
                await asyncio.sleep(0)
                named = _decoded(body)
        is_ollama = exchange.dialect is OLLAMA
        name = _text(named.model, "model")
        if not name and is_ollama:
            name = _text(named.name, "name")
        if not name:
            raise invalid(f"model is missing: {missing}", "model")
        if not is_ollama:
            return Wanted(name)
        if len(bytes(named.keep_alive)) > _MOST_CHARACTERS:
            raise invalid("keep_alive is too long for a duration", "keep_alive")
        try:
            given = msgspec.json.decode(named.keep_alive)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise invalid("keep_alive is no duration", "keep_alive") from None
        return Wanted(name, None if given is None else seconds_of(given), given is not None)


def without_tag(name: str) -> str:
    """Return a name without the tag that Ollama's clients add."""
    return name.removesuffix(TAG)


def seconds_of(given: Any) -> float | None:
    """Return a time of Ollama's in seconds: a number, or a text such as "5m"; None is for ever.

    A negative one is for ever.
    """
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise _no_duration(given)
    seconds: float
    if isinstance(given, str):
        match = _DURATION.fullmatch(given[: _MOST_CHARACTERS + 1])
        if match is None and re.fullmatch(r"[+-]?\d{1,9}", given) is None:
            raise _no_duration(given)
        if match is None:
            seconds = float(given)
        else:
            parts = _PART.findall(match[2])
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
            seconds = -seconds if match[1] == "-" else seconds
    else:
        seconds = float(given)
    return None if seconds < 0 or seconds > _FOR_EVER else seconds


def _no_duration(given: Any) -> ApiError:
    shown = repr(given)[:_MOST_CHARACTERS]
    return invalid(f"keep_alive={shown} must be a number of seconds, or as '5m'", "keep_alive")


def _decoded(body: bytes) -> _Named:
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is not a JSON object: {why_malformed(error)}") from None


def _text(raw: msgspec.Raw, field: str) -> str:
    """Return a field that must be a short text; "" if it is null or missing."""
    if len(bytes(raw)) > _MOST_BYTES:
        raise invalid(f"{field} is longer than any name of a model", field)
    try:
        return msgspec.json.decode(raw, type=str | None) or ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid(f"{field}: expected text", field) from None
