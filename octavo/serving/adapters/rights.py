"""Who may change which adapters there are, or which one applies to all requests."""

from __future__ import annotations

from octavo.serving.exchange import Exchange
from octavo.transport.errors import ApiError

OFF = "runtime_lora_updating_off"


def check_may_change(exchange: Exchange) -> None:
    """Raise ApiError unless clients may change adapters; those of the admin socket always may."""
    if not exchange.server.config.allow_runtime_lora_updating:
        raise ApiError(
            403,
            "clients of this server may not change adapters: start it with "
            "--allow-runtime-lora-updating, or use this path on the --admin-socket",
            code=OFF,
        )
