"""The live stream of a server as its reader sees it: frames, or an error that says what to do."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import msgspec

from octavo.cli.chat.endpoint import message_of, shown
from octavo.cli.top.ask import AskError, asked, error_in, refusal
from octavo.route.address import Address
from octavo.serving.live.schema import LiveFrame

MAX_FRAME_BYTES = 16 << 20
_PREFIX, _END = b"data: ", b"[DONE]"


def frames(address: Address, key: str) -> Iterator[tuple[LiveFrame, bytes]]:
    """Yield each frame of one stream, decoded and as it came, until the server ends it."""
    decode = msgspec.json.Decoder(LiveFrame).decode
    with asked(address, key, "/v1/live") as response:
        kind_sent = response.getheader("content-type", "")
        if response.status != 200 or not kind_sent.startswith("text/event-stream"):
            raise _refusal(address, response, has_key=bool(key))
        while line := response.readline(MAX_FRAME_BYTES):
            data = line.removeprefix(_PREFIX).strip()
            if data == _END:
                return
            if data:
                try:
                    frame = decode(data)
                except (msgspec.MsgspecError, RecursionError) as error:
                    raise AskError(
                        f"{address.url} sends frames that this version does not read "
                        f"({shown(str(error))}); use the `octavo top` of the server's version"
                    ) from None
                yield frame, data


def _refusal(address: Address, response: http.client.HTTPResponse, *, has_key: bool) -> AskError:
    """Return the error for a response that is no stream."""
    body = error_in(response)
    message = message_of(body) if body else ""
    is_octavo = message.startswith("this server has no live stream")
    if response.status in (200, 404, 405) and not is_octavo:
        return AskError(
            f"{address.url} has no live stream: it is another server, or one of an older version; "
            "give the URL of an `octavo serve`"
        )
    return refusal(address, response.status, body, has_key=has_key)
