"""A frame of the live stream: what models, engines and a key's own requests are doing now."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ModelState = Literal["ready", "paused", "draining", "sleeping", "restarting", "stopped"]
# The states of a request, in their order: it is prepared and queued in the server, is submitted,
# waits in an engine, waits there for something else than capacity, computes its prompt, generates.
RequestState = Literal["admission", "submitted", "waiting", "held", "prefill", "decode"]


class LiveTimes(Struct, kw_only=True):
    """The times of the last seconds in milliseconds; quantiles are read off a histogram."""

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float


class LiveMap(Struct, kw_only=True):
    """The KV blocks of an engine in cells of equal size; shares are per cent."""

    cell_blocks: int
    used: tuple[int, ...]  # held by sequences
    kept: tuple[int, ...]  # free, with content that can be found again


class LiveEngine(Struct, kw_only=True):
    """One engine: its load, its totals since the start, and the time of its last steps."""

    is_ready: bool
    deaths: int
    restarts: int
    running: int
    waiting: int
    held: int
    slots: int
    blocks: int
    free_blocks: int
    block_tokens: int
    steps: int
    tokens: int
    prefill_tokens: int
    cached_tokens: int
    preemptions: int
    drafts: int
    accepted_drafts: int
    step_ms: float  # the mean of its last steps
    longest_step_ms: float
    seen_ms: float | None  # the age of the map and of the bars; None: the engine was not seen yet
    blocked_by: str  # why the first that waits is not admitted
    map: LiveMap | None  # None: not seen yet, or several keys share the server


class LiveModel(Struct, kw_only=True):
    """One model: its state, its queue, and what its clients have seen in the last seconds."""

    name: str
    state: ModelState
    why: str  # the reason for a state in which requests are refused
    queue_requests: int
    queue_tokens: int
    admitted: int
    capacity: int
    expected_wait_seconds: float
    prompt_tokens: float
    generated_tokens: int
    first_token: LiveTimes
    between_tokens: LiveTimes
    whole: LiveTimes
    engines: list[LiveEngine]


class LiveRequest(Struct, kw_only=True):
    """One sequence of a request of the key that listens."""

    model: str
    id: str
    state: RequestState
    engine: int | None
    age_ms: float
    is_stream: bool
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    known_tokens: int  # of the prompt and the answer so far
    most_tokens: int | None  # that it may have in the end
    drafts: int
    accepted_drafts: int
    reason: str  # what it waits for
    cells: tuple[int, ...]  # of the engine's map


class LiveEnded(Struct, kw_only=True):
    """A request of the key that listens, which has ended lately."""

    id: str
    outcome: str
    total_ms: float
    first_byte_ms: float | None
    prompt_tokens: int
    generated_tokens: int


class LiveFrame(Struct, kw_only=True):
    """One event of the stream: what a server is doing now, without any text."""

    version: str
    uptime_seconds: float
    listeners: int
    is_shared: bool  # several keys have it, so that the requests are not all
    models: list[LiveModel]
    requests: list[LiveRequest]
    left_out: int  # requests beyond the bound of the list
    ended: list[LiveEnded]  # the newest first
