"""What HTTP needs of the server behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from octavo.observe.http_metrics import HttpMetrics
    from octavo.options.transport import TransportSettings
    from octavo.transport.auth import AccessControl


class HttpContext(Protocol):
    """The settings, clocks, rules of access and metrics of a server."""

    @property
    def config(self) -> TransportSettings:
        """The settings of connections."""

    @property
    def access(self) -> AccessControl:
        """The rules of keys, hosts and origins."""

    @property
    def metrics(self) -> HttpMetrics:
        """The counts of responses, disconnects and slow readers."""

    @property
    def clock(self) -> Callable[[], float]:
        """The seconds since some time, never set back; deadlines are counted by it."""

    @property
    def wall_time(self) -> Callable[[], int]:
        """The seconds since 1970."""

    @property
    def digests_bodies(self) -> bool:
        """True if requests can be continued, for which their bodies are compared."""
