"""The server of grpcio for one event loop, with an end for calls of methods that do not exist.

grpcio decodes the path of such a call, and its server ends when the path is not UTF-8: one packet
from anybody would stop the interface. So all methods are registered by their paths, and what is
called beside them is refused here, whatever its path is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

_LOGGER = "grpc._cython.cygrpc"  # of grpcio's server

Handlers = Mapping[str, Any]  # of grpcio, by path


def make_server(handlers: Handlers, options: Mapping[str, int]) -> Any:
    """Return a server that is not started; it belongs to the event loop that runs now."""
    import grpc
    import grpc.aio
    from grpc._cython import cygrpc

    logging.getLogger(_LOGGER).addFilter(_is_of_server)

    class Server(cygrpc.AioServer):  # type: ignore[misc]
        """A server whose requests for further calls have two forms."""

        def _make_request_call_future(self, method: bytes | None) -> Any:
            if method is not None:
                return super()._make_request_call_future(method)
            return asyncio.get_running_loop().create_task(self._refuse_unknown())

        async def _refuse_unknown(self) -> None:
            """Refuse calls without a handler until the server stops."""
            loop = asyncio.get_running_loop()
            refusals = set()
            while True:
                state = await self._request_call()
                context = cygrpc._ServicerContext(state, None, None, loop)
                task = loop.create_task(_refuse(context))
                refusals.add(task)
                task.add_done_callback(refusals.discard)

    async def _refuse(context: Any) -> None:
        try:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")
        except Exception:  # AbortError, and those of a client that has gone
            return

    made = Server(asyncio.get_running_loop(), None, (), (), tuple(options.items()), None)
    made.add_registered_method_handlers(dict(handlers))
    return made


def _is_of_server(record: logging.LogRecord) -> bool:
    """Return whether a record is more than that an answer's client has left.

    grpcio logs each such answer with a traceback, and anybody can leave answers unread.
    """
    import grpc.aio

    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, grpc.aio.InternalError)
