"""The clients that follow a response in the background: its events, as they come."""

from __future__ import annotations

import asyncio

from octavo.dialects.common.dialect import event
from octavo.dialects.responses.dialect import error_fields
from octavo.serving.exchange import Exchange
from octavo.serving.store.run import Run
from octavo.transport.errors import ApiError, unavailable
from octavo.transport.stream import ResponseStream

MOST_AT_ONCE = 64  # events that are written without a turn for others


async def follow(exchange: Exchange, run: Run, known: int) -> None:
    """Write the events behind the one that the client knows, until the last."""
    stream = ResponseStream(exchange, _failure)
    at = known + 1
    _check(run)
    await stream.open()
    try:
        while True:
            _check(run)
            news = run.news()
            frames = run.read(at)
            if frames:
                news.close()
                at += len(frames)
                for begin in range(0, len(frames), MOST_AT_ONCE):
                    await stream.write(frames[begin : begin + MOST_AT_ONCE])
                    await asyncio.sleep(0)
            elif run.is_over:
                news.close()
                break
            else:
                await news
        await stream.write((), more=False)
    finally:
        stream.stop_pinging()


def _check(run: Run) -> None:
    """Raise ApiError if the events of a response were dropped."""
    if not run.is_kept:
        raise unavailable(
            "there was no room to keep the events of this response, which goes on without them; "
            "get it without `stream` when it has ended",
            "responses_full",
        )


def _failure(error: ApiError) -> bytes:
    """Return the event of an error of this connection alone."""
    return event("error", error_fields(error))
