"""The live stream of a server as its reader sees it: frames, or an error that says what to do."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator

import msgspec

from octavo.cli.chat.endpoint import MAX_ERROR_BYTES, message_of, shown
from octavo.route.address import Address
from octavo.serving.live.schema import LiveFrame

CONNECT_SECONDS = 10.0
SILENT_SECONDS = 30.0  # frames come twice a second
MAX_FRAME_BYTES = 16 << 20
_PREFIX, _END = b"data: ", b"[DONE]"


class LiveError(OSError):
    """The reason why a server's live stream cannot be read; the message says what to do."""


class LostError(LiveError):
    """A stream that broke off, or a server that is not there: it may come back."""


def frames(address: Address, key: str) -> Iterator[tuple[LiveFrame, bytes]]:
    """Yield each frame of one stream, decoded and as it came, until the server ends it."""
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=CONNECT_SECONDS)
    if isinstance(connection, http.client.HTTPSConnection):
        connection._context = ssl.create_default_context()  # type: ignore[attr-defined]
    headers = {"authorization": f"Bearer {key}"} if key else {}
    decode = msgspec.json.Decoder(LiveFrame).decode
    try:
        connection.connect()
        connection.sock.settimeout(SILENT_SECONDS)
        connection.request("GET", f"{address.base}/v1/live", headers=headers)
        response = connection.getresponse()
        kind_sent = response.getheader("content-type", "")
        if response.status != 200 or not kind_sent.startswith("text/event-stream"):
            raise _refusal(address, response, bool(key))
        while line := response.readline(MAX_FRAME_BYTES):
            data = line.removeprefix(_PREFIX).strip()
            if data == _END:
                return
            if data:
                yield decode(data), data
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LiveError(
            f"{address.url} sends frames that this version does not read ({shown(str(error))}); "
            "use the `octavo top` of the server's version"
        ) from None
    except LiveError:
        raise
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LostError(
            f"no server answers at {address.url}: {shown(why).lower()}; start one with "
            "`octavo serve MODEL`, or give the URL of another"
        ) from None
    finally:
        connection.close()


def _refusal(address: Address, response: http.client.HTTPResponse, has_key: bool) -> LiveError:
    """Return the error for a response that is no stream."""
    try:
        found = json.loads(response.read(MAX_ERROR_BYTES))
    except (ValueError, RecursionError):
        found = None
    message = message_of(found) if isinstance(found, dict) else ""
    status, url = response.status, address.url
    if status in (401, 403) and not has_key:
        return LiveError(f"{url} wants a key: put it into OCTAVO_API_KEY")
    if status == 401:
        return LiveError(f"{url} does not know the key in OCTAVO_API_KEY: use one of its own")
    if status in (200, 404, 405) and not message.startswith("this server has no live stream"):
        return LiveError(
            f"{url} has no live stream: it is another server, or one of an older version; give "
            "the URL of an `octavo serve`"
        )
    if status == 503:
        return LostError(f"{url} answers with status 503: {message or 'it is not ready'}")
    return LiveError(f"{url} answers with status {status}: {message or 'and no message'}")
