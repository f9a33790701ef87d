"""A request on its way from the front to a replica, which is all that the replica knows of it."""

from __future__ import annotations

from typing import NamedTuple

from octavo.transport.answer import Headers

OPEN = "open"  # of the statistics that a replica reports: its open requests


class Passed(NamedTuple):
    """A request of HTTP whose client and body the front has checked."""

    number: int  # of the front's ledger
    method: str
    path: str
    query: str
    headers: Headers
    body: bytes


class Head(NamedTuple):
    """The part of an answer that precedes its body, which follows as bytes."""

    status: int
    headers: Headers
