"""A middleware whose end takes for ever."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

CLOSES = "the middleware closes"


class Endless:
    """An application around another one, which does not come to the end of its lifespan."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        sys.stderr.write(f"{CLOSES}\n")
        sys.stderr.flush()
        await asyncio.Event().wait()
