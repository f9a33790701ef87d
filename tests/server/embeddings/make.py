"""A server of a model that makes vectors, for the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from octavo.model_facts import PoolingFacts
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving


def run(
    directory: Path,
    test: Callable[[Client], Awaitable[None]],
    pooling: PoolingFacts,
    **options: Any,
) -> None:
    """Run a test against a server of a model with these vectors and classes."""

    async def main() -> None:
        engine = FakeEngine(directory, pooling=pooling)
        async with serving(directory, engine, **options) as client:
            await test(client)

    asyncio.run(main())
