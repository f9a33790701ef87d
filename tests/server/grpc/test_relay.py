"""The relay of gRPC's connections: what is left of a client that leaves early."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from octavo.dialects.grpc.relay import Relay
from octavo.options.server import ServerSettings
from octavo.transport.connections import Connections
from tests.server.make import until


def test_nothing_is_kept_of_a_client_that_leaves_before_grpcio_accepts(tmp_path: Path) -> None:
    """The queue of the inner socket is full, and no connection is accepted."""

    async def main() -> None:
        metrics: Any = None  # without a refusal
        connections = Connections(ServerSettings(), metrics, lambda error: b"")
        relay = Relay(connections, None)
        path = tmp_path / "inner"
        with socket.socket(socket.AF_UNIX) as inner, socket.socket(socket.AF_UNIX) as other:
            inner.bind(str(path))
            inner.listen(0)
            other.connect(str(path))
            listening = socket.create_server(("127.0.0.1", 0))
            port = listening.getsockname()[1]
            await relay.start(listening, path)
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            await until(lambda: bool(relay._open))
            (relayed,) = relay._open
            writer.transport.abort()
            await relayed.closed
            inner.accept()[0].close()  # there is room for the next
            assert relayed._connecting is not None
            await asyncio.wait({relayed._connecting})
            assert not relay._by_name
            assert relayed._connecting.cancelled()
            assert connections.num_open == 0
            await relay.stop_accepting()
            await relay.stop()

    asyncio.run(main())
