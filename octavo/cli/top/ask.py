"""A question to a running server, as `octavo top` and `octavo explain` ask it, and its errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any

from octavo.cli.chat.endpoint import MAX_ERROR_BYTES, message_of, shown
from octavo.route.address import Address

CONNECT_SECONDS = 10.0
SILENT_SECONDS = 30.0  # a live stream has two frames a second


class AskError(OSError):
    """The reason why a server does not answer as it should; the message says what to do."""


class LostError(AskError):
    """A stream that broke off, or a server that is not there: it may come back."""


@contextlib.contextmanager
def asked(address: Address, key: str, path: str) -> Iterator[http.client.HTTPResponse]:
    """Yield the response to a GET, whose status may be any; LostError where there is none."""
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=CONNECT_SECONDS)
    if isinstance(connection, http.client.HTTPSConnection):
        connection._context = ssl.create_default_context()  # type: ignore[attr-defined]
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        connection.connect()
        connection.sock.settimeout(SILENT_SECONDS)
        connection.request("GET", f"{address.base}{path}", headers=headers)
        yield connection.getresponse()
    except AskError:
        raise
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LostError(
            f"no server answers at {address.url}: {shown(why).lower()}; start one with "
            "`octavo serve MODEL`, or give the URL of another"
        ) from None
    finally:
        connection.close()


def error_in(response: http.client.HTTPResponse) -> dict[str, Any]:
    """Return the object that a server answers with; empty, if it sends another thing."""
    try:
        found = json.loads(response.read(MAX_ERROR_BYTES))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def refusal(address: Address, status: int, body: dict[str, Any], *, has_key: bool) -> AskError:
    """Return the error for a response that is no answer to the question."""
    message = message_of(body) if body else ""
    url = address.url
    if status in (401, 403) and not has_key:
        return AskError(f"{url} wants a key: put it into OCTAVO_API_KEY")
    if status == 401:
        return AskError(f"{url} does not know the key in OCTAVO_API_KEY: use one of its own")
    if status == 503:
        return LostError(f"{url} answers with status 503: {message or 'it is not ready'}")
    return AskError(f"{url} answers with status {status}: {message or 'and no message'}")
