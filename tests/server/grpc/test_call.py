"""The scope of a call: what the application reads of it as of a request over HTTP."""

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
        call.take(b"12345")
        headers = dict(call.scope["headers"])
        assert headers[b"content-length"] == b"5"
        assert headers[b"x-request-id"] == b"mine"

    asyncio.run(main())
