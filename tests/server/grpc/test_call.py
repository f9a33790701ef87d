"""What the application reads of a call, as of a request over HTTP."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from octavo.dialects.grpc.call import Call


def test_a_call_announces_the_size_of_its_message() -> None:
    """Admission counts the largest body for each waiting call that announces no size."""

    async def main() -> None:
        metadata = [("Content-Length", "5000000"), ("x-request-id", "mine")]
        context = Mock(invocation_metadata=lambda: metadata, time_remaining=lambda: None)
        call = Call(context, "/x", is_stream=False)
        config = Mock(root_path="")
        server = Mock(config=config, clock=lambda: 0.0, wall_time=lambda: 0, digests_bodies=False)
        exchange = call.exchange(server, b"12345")
        assert exchange.headers["content-length"] == "5"
        assert exchange.headers["x-request-id"] == "mine"
        assert exchange.request_id == "mine"

    asyncio.run(main())
