"""One engine's group as Python has it: steps, the deaths of members, and how the group ends."""

from __future__ import annotations

import ctypes
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.engine.ranks.group import ProcessGroup
from tests.sim.groups.library import Chances

MOST_NOTICE_SECONDS = 0.3  # until the engine's process sees that another has ended
KINDS = ("ranks", "stages", "sums")  # of groups: sums are of ranks on several nodes
ENDING_SECONDS = 0.5  # in which the members of a group that has ended do so


class Row(NamedTuple):
    """A row of a step: a token at a position of a sequence of the step."""

    token: int
    position: int


class Step(NamedTuple):
    """A step as the first member has it."""

    rows: list[list[Row]]  # of each sequence
    tables: list[list[int]]
    wanted: list[int]  # rows, counted through all sequences, from which tokens are drawn
    copies: list[tuple[int, int]]


class Shape(NamedTuple):
    """The sizes of all groups of a world, and the chances of what is rare."""

    kind: str
    members: int
    nodes: int  # of ranks that add up, in equal parts
    num_blocks: int
    block_size: int
    chances: tuple[float, ...]  # of Chances

    @property
    def has_stages(self) -> bool:
        """True if its members are stages, which compute several steps at once."""
        return self.kind == "stages"


class WaitsForeverError(Exception):
    """A step that no member goes on with, since a frame was lost or a member was stopped."""


class MemberEndedError(RuntimeError):
    """A step that has failed, or that cannot be finished, because a member has ended."""


class SimGroup(ProcessGroup):
    """A group whose processes are simulated; what becomes of it when one ends is the engine's."""

    def __init__(
        self,
        library: ctypes.CDLL,
        shape: Shape,
        seed: int,
        clock: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], object],
        on_fault: Callable[[], None],
    ) -> None:
        super().__init__(shape.members)
        self._library, self.shape = library, shape
        self._random = random.Random(seed)
        self._clock, self._call_at, self._on_fault = clock, call_at, on_fault
        self._native: int | None = library.group_new(
            *(KINDS.index(shape.kind), shape.members, shape.nodes),
            *(shape.num_blocks, shape.block_size, seed % (1 << 63)),
            ctypes.byref(Chances(*shape.chances)),
        )
        self._end = self._end_members
        self._version = 0
        self._num_faults = 0
        # Of each step: the states that it has, and the members that had ended before it.
        self._in_flight: deque[tuple[int, list[int]]] = deque()
        self._notices: dict[int, float] = {}  # by a member that has ended: when that is seen
        self.is_in_step = False
        self._stopped: dict[int, None] = {}
        self.ended_at: float | None = None  # when the first member ended
        self.slips: list[str] = []
        self._behind = clock()  # when the machine of the group was started

    def free(self) -> None:
        """Drop the processes, as with the engine's own."""
        if self._native is not None:
            self._library.group_free(self._native)
            self._native = None
        self._end = lambda reason: None

    # what happens to members

    def kill(self, points: int) -> None:
        """Let a member die: now, or at the point of this number of its work."""
        if self._native is None or self.reason:
            return
        member = self._random.randrange(1, self.size)
        self._library.group_kill(self._native, member, points)
        self._on_fault()
        self.look()

    def stop(self) -> None:
        """Let a member stop, as by SIGSTOP: it has not ended, and does nothing more."""
        if self._native is not None and not self.reason:
            member = self._random.randrange(1, self.size)
            self._library.group_stop(self._native, member)
            self._stopped[member] = None
            self._on_fault()

    def fail(self) -> None:
        """Let a member fail in one of the next steps."""
        if self._native is not None:
            member = self._random.randrange(1, self.size)
            self._library.group_fail(self._native, member, self._random.randint(1, 3))
            self._on_fault()

    def look(self) -> None:
        """Let the end of a member be noticed a little later."""
        if self._native is None:
            return
        for member in range(1, self.size):
            state = self._library.group_state_of(self._native, member)
            if state and member not in self._notices and member not in self._stopped:
                now = self._now()
                if self.ended_at is None:
                    self.ended_at = now
                at = now + self._random.uniform(0, MOST_NOTICE_SECONDS)
                self._notices[member] = at
                self._call_at(at, lambda member=member: self._notice(member))  # type: ignore[misc]

    def _notice(self, member: int) -> None:
        """Note the end of a process as `_watch` does, whose connection has ended."""
        if self._native is not None and not self.is_in_step:
            self._note(member)

    def _note(self, member: int) -> None:
        noun = "stage" if self.shape.has_stages else "rank"
        self.note_end(f"{noun} {member} has ended: its process was ended by SIGKILL")

    def _end_members(self, reason: str) -> None:
        self._library.group_end(self._native, reason.encode())
        self._check_that_all_end()

    def _check_that_all_end(self) -> None:
        """Require that no member waits for one that has ended."""
        if self._stopped:
            return
        self._library.group_settle(self._native, ENDING_SECONDS)
        for member in range(1, self.size):
            if not self._library.group_state_of(self._native, member):
                self.slips.append(f"member {member} waits for ever in a group that has ended")

    # steps

    def _now(self) -> float:
        return max(self._clock(), self._behind + self._library.group_now(self._native))

    def begin(self, step: Step) -> float:
        """Begin a step, which stages may compute beside others; return the seconds until it has."""
        assert self._native is not None
        began = self._clock()
        library, native = self._library, self._native
        library.group_idle(native, began - self._behind)  # what happened since the last step
        self.look()
        if not self._in_flight and self._random.random() < 0.1:
            self._version += 1
            library.group_send(native, self._version)
            self._finish()
        self._in_flight.append((len(step.wanted), self._dead()))
        sizes, numbers = packed(step)
        library.group_begin(native, sizes, numbers)
        self._finish()
        return max(0.0, self._now() - began)

    def take(self) -> tuple[list[int], float]:
        """Return the states behind the wanted rows of the oldest step, and the seconds until then.

        What was taken from a member that had ended before the step began is a slip.
        """
        assert self._native is not None
        began = self._clock()
        library, native = self._library, self._native
        num_wanted, dead = self._in_flight.popleft()
        library.group_take(native)
        self._finish()
        if dead:
            self.slips.append(f"a step has a result, and members {dead} had ended before it")
        if not library.group_all_computed(native):
            self.slips.append("a step has a result, and a member has not computed its share")
        found = (ctypes.c_uint64 * (num_wanted or 1))()
        count = library.group_states(native, found)
        return list(found)[:count], max(0.0, self._now() - began)

    def _dead(self) -> list[int]:
        library, native = self._library, self._native
        return [m for m in range(1, self.size) if library.group_state_of(native, m)]

    def right_state(self, tokens: Sequence[int]) -> int:
        """Return the state that a group must find behind these tokens."""
        given = (ctypes.c_int32 * len(tokens))(*tokens)
        state: int = self._library.group_right_state(self._native, given, len(tokens))
        return state

    def _finish(self) -> None:
        """Run the members until the first one has done what was begun; raise why it has not."""
        library, native = self._library, self._native
        self.is_in_step = True
        try:
            while True:
                noticed = min(self._notices.values(), default=math.inf)
                until = noticed if not self.reason else self._now() + 1.0
                state = library.group_run(native, until - self._behind)
                self._note_faults()
                self.look()
                if state == 0:
                    return
                if state == 1:
                    break
                due = [m for m, at in self._notices.items() if at <= self._now() + 1e-9]
                if due and not self.reason:
                    self._note(due[0])
                elif self.reason:
                    self.slips.append("a step goes on in a group that has ended")
                    break
                elif min(self._notices.values(), default=math.inf) == noticed:
                    if not (self._num_faults or self._stopped):
                        self.slips.append("a step waits for ever, and no member has ended")
                    raise WaitsForeverError
        finally:
            self.is_in_step = False
        raise MemberEndedError(library.group_failure(native).decode() or "it does not end")

    def _note_faults(self) -> None:
        count = self._library.group_num_faults(self._native)
        if count > self._num_faults:
            self._num_faults = count
            self._on_fault()


def packed(step: Step) -> tuple[ctypes.Array[ctypes.c_int32], ctypes.Array[ctypes.c_int32]]:
    """Return the sizes and the numbers of a step, as `group_begin` takes them."""
    rows = [row for each in step.rows for row in each]
    starts = [0]
    for each in step.rows:
        starts.append(starts[-1] + len(each))
    width = max(map(len, step.tables), default=1)
    table = [block for each in step.tables for block in [*each, *[0] * (width - len(each))]]
    numbers = [
        *(row.token for row in rows),
        *(row.position for row in rows),
        *starts,
        *table,
        *step.wanted,
        *(block for pair in step.copies for block in pair),
    ]
    sizes = [len(rows), len(step.rows), width, len(step.wanted), len(step.copies)]
    return (ctypes.c_int32 * len(sizes))(*sizes), (ctypes.c_int32 * len(numbers))(*numbers)
