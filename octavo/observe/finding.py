"""A line of the report of `octavo doctor`."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One line of the report: a subject, the finding and, if it is bad, advice."""

    what: str
    found: str
    advice: str = ""
    is_fatal: bool = False
