"""The standard reflection service (v1alpha), for callers with a key."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

from octavo.dialects.grpc.call import Call
from octavo.dialects.grpc.dialect import SERVICE
from octavo.dialects.grpc.entry import Entry
from octavo.dialects.grpc.health import NAME as HEALTH
from octavo.dialects.grpc.inner import Handlers
from octavo.transport.errors import internal, invalid

log = logging.getLogger(__name__)

_METHOD = "ServerReflectionInfo"
_MAX_BYTES = 4096  # of a request


class Reflection:
    """The descriptions of the services, which a caller asks for one after the other."""

    def __init__(self, entry: Entry) -> None:
        from grpc_reflection.v1alpha import reflection, reflection_pb2

        self._entry = entry
        self._request = reflection_pb2.ServerReflectionRequest
        self._path = f"/{reflection.SERVICE_NAME}/{_METHOD}"
        names = (SERVICE, HEALTH, reflection.SERVICE_NAME)
        self._describe = reflection.aio.ReflectionServicer(names).ServerReflectionInfo

    def handlers(self) -> Handlers:
        """Return the handlers of grpcio by their paths."""
        import grpc

        return {self._path: grpc.stream_stream_rpc_method_handler(self._answer)}

    async def _answer(self, requests: Any, context: Any) -> None:
        call = Call(context, self._path, is_stream=True)
        async with self._entry.ending(call):
            owner = self._entry.enter(call, self._entry.check(call))
            while (message := await self._entry.read(call, owner)) is not None:
                for response in await self._responses(message):
                    await context.write(response.SerializeToString())

    async def _responses(self, message: bytes) -> list[Any]:
        if len(message) > _MAX_BYTES:
            raise invalid(
                f"the request has {len(message)} bytes, and at most {_MAX_BYTES} are read"
            )
        try:
            request = self._request.FromString(message)
        except Exception:  # of protobuf's own, in one of its two implementations
            raise invalid("the message is no ServerReflectionRequest") from None
        try:
            return [response async for response in self._describe(_one(request), None)]
        except Exception:
            log.exception("a request for reflection failed")
            raise internal("reflection") from None


async def _one(request: Any) -> AsyncIterator[Any]:
    yield request
