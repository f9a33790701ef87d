"""Starts a router, and stops it in order after a signal."""

from __future__ import annotations

import socket
from collections.abc import Callable

from octavo.dialects.common.dialect import OPENAI
from octavo.options.route import RouteSettings
from octavo.route.pool import MAX_IDLE
from octavo.route.router import Router
from octavo.route.routes import admin_application, application
from octavo.transport.lifecycle import Lifecycle, run_to_end
from octavo.transport.sockets import descriptors_for


class RouterLifecycle(Lifecycle):
    """The sockets and the shutdown of one router."""

    noun = "router"

    def __init__(self, router: Router, *, handles_signals: bool = True) -> None:
        num_beside = router.config.max_open_requests + len(router.upstreams) * (MAX_IDLE + 1)
        most = descriptors_for(router.config, num_beside)
        super().__init__(router, OPENAI.error_body, most, handles_signals=handles_signals)
        self.router = router
        self.config = router.config

    async def _start(self, listening: socket.socket, admin: socket.socket | None) -> None:
        await self.router.start()
        await self._listen(application(self.router).serve, listening)
        if admin is not None:
            await self._listen_to_operators(admin_application(self.router).serve, admin)

    async def _close(self) -> None:
        await self._stop_listening()
        await self.router.close()


def run(config: RouteSettings, on_ready: Callable[[RouterLifecycle], None]) -> int:
    """Route until a signal ends it; return the exit code of the process."""
    return run_to_end(config, lambda: RouterLifecycle(Router(config)).run(on_ready))
