"""The journal of a request in a simulated world."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

from octavo.core.request import Request
from tests.sim.events import Wait


@dataclass
class Journal:
    """The front end's journal of a request: everything needed to start it again."""

    request: Request
    expected: list[int]
    expected_reason: str
    output: list[int] = field(default_factory=list)
    reason: str | None = None
    restarted: bool = False
    aborted: bool = False
    could_overload: bool = False  # the queue was full when it was submitted
    waits: tuple[Wait, ...] = ()
    unready: set[str] = field(default_factory=set)  # reasons that the engine waits for
    submitted_at: float = 0.0
    failed_wait: str | None = None  # a reason that has ended with an error
    sampler_state: float | None = None  # that came with the last tokens

    def resume(self) -> Request:
        """Return the request as a new engine must get it."""
        return replace(
            self.request,
            emitted=array("i", self.output),
            resumed=self.restarted,
            sampler_state=self.sampler_state,
        )
