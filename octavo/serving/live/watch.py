"""What is seen of one model: its engines are asked for a look, and its parts are read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from octavo.client.client import EngineState
from octavo.core.snapshot import EngineView, SequenceView
from octavo.core.stats import RESTART
from octavo.observe.explain import Record
from octavo.serving.live.schema import (
    LiveEngine,
    LiveMap,
    LiveModel,
    LiveRequest,
    ModelState,
    RequestState,
)
from octavo.serving.live.times import RecentTimes
from octavo.wire.commands import Look, Reply

if TYPE_CHECKING:
    from octavo.serving.server import Server

MAX_CELLS = 1024  # of a map: more than any engine of this version reports
# By the codes of the reasons for which requests are refused.
_STATES: Mapping[str, ModelState] = {
    "server_shutdown": "draining",
    "sleeping": "sleeping",
    "engine_not_ready": "restarting",
}


class EngineEye:
    """The last look at one engine, and the one that it was asked for."""

    def __init__(self, engine: EngineState) -> None:
        self.engine = engine
        self._reply: asyncio.Future[Reply] | None = None
        self.view: EngineView | None = None
        self.seen_at = 0.0

    def ask(self) -> asyncio.Future[Reply] | None:
        """Ask for a look unless the engine still owes one; return the reply to come."""
        if self._reply is None and self.engine.is_ready:
            self._reply = self.engine.command(Look())
        return self._reply

    def take(self, now: float) -> None:
        """Take the look if it has come; an engine that is away has nothing to show."""
        if not self.engine.is_ready:
            self.view = None
        if self._reply is not None and self._reply.done():
            reply, self._reply = self._reply.result(), None
            if isinstance(reply.value, EngineView) and self.engine.is_ready:
                self.view, self.seen_at = reply.value, now


class ModelWatch:
    """One model as its listeners see it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        metrics = server.metrics
        self._first = RecentTimes(metrics.first_token)
        self._between = RecentTimes(metrics.between)
        self._whole = RecentTimes(metrics.whole)
        self.eyes = [EngineEye(engine) for engine in server.llm.engines]

    def take(self, now: float, *, is_shared: bool) -> LiveModel:
        """Return the model now; where several keys share it, without the places of blocks."""
        server = self._server
        for eye in self.eyes:
            eye.take(now)
        state, why = self._state()
        queue = server.admission
        return LiveModel(
            name=server.model_name,
            state=state,
            why=why,
            queue_requests=queue.num_waiting,
            queue_tokens=queue.waiting_tokens,
            admitted=queue.num_admitted,
            capacity=queue.capacity,
            expected_wait_seconds=round(queue.seconds_to_wait(), 3),
            prompt_tokens=server.metrics.prompt_tokens.value(),
            generated_tokens=server.metrics.num_generated,
            first_token=self._first.take(),
            between_tokens=self._between.take(),
            whole=self._whole.take(),
            engines=[self._engine(eye, now, is_shared=is_shared) for eye in self.eyes],
        )

    def _state(self) -> tuple[ModelState, str]:
        server = self._server
        refusal = server.refusal()
        if refusal is None:
            return ("paused", "an operator has paused it") if server.is_paused else ("ready", "")
        if server.llm.death is not None:
            return "stopped", "its engine has stopped, and is not started again"
        return _STATES.get(refusal.code or "", "restarting"), refusal.message

    def _engine(self, eye: EngineEye, now: float, *, is_shared: bool) -> LiveEngine:
        engine, view = eye.engine, eye.view
        facts, snapshot = self._server.llm.facts, engine.snapshot()
        took, load = snapshot.recent_seconds, snapshot.load
        return LiveEngine(
            is_ready=engine.is_well(),
            deaths=engine.vitals.num_deaths,
            restarts=engine.vitals.num_restarts,
            running=load.num_running,
            waiting=load.num_waiting,
            held=load.num_held,
            slots=facts.max_num_seqs,
            blocks=max(0, snapshot.num_blocks - 1),  # one is unused
            free_blocks=load.num_free_blocks,
            block_tokens=facts.block_size,
            steps=snapshot.num_steps,
            tokens=snapshot.num_tokens,
            prefill_tokens=snapshot.num_prefill_tokens,
            cached_tokens=snapshot.num_cached_tokens,
            preemptions=snapshot.num_preemptions,
            drafts=snapshot.num_drafts,
            accepted_drafts=snapshot.num_accepted_drafts,
            step_ms=round(1000 * sum(took) / len(took), 3) if took else 0.0,
            longest_step_ms=round(1000 * max(took, default=0.0), 3),
            seen_ms=None if view is None else round(1000 * (now - eye.seen_at), 1),
            blocked_by="" if view is None or is_shared else view.blocked_by,
            map=None if view is None or is_shared else _map(view),
        )

    def requests(self, owner: str, now: float, *, is_shared: bool) -> Iterator[LiveRequest]:
        """Yield the sequences of a key's requests: those that engines have, and then the others."""
        records: dict[str, Record] = {}
        for active in self._server.active.values():
            if not is_shared or active.record.owner == owner:
                records.update(dict.fromkeys(active.engine_ids, active.record))
        seen: set[str] = set()
        for index, eye in enumerate(self.eyes):
            for each in () if eye.view is None else eye.view.sequences:
                name = (eye.engine.request_id(each.name) or "").rpartition("#")[0]
                record = records.get(name)
                if record is not None:
                    seen.add(name)
                    cells = () if is_shared else each.cells[:MAX_CELLS]
                    yield self._running(record, each, index, cells, now)
        for name, record in records.items():
            if name not in seen:
                yield self._waiting(record, now)

    def _running(
        self, record: Record, view: SequenceView, engine: int, cells: tuple[int, ...], now: float
    ) -> LiveRequest:
        return LiveRequest(
            model=self._server.model_name,
            id=record.request_id,
            state=_state_of(view),
            engine=engine,
            age_ms=_age(record, now),
            is_stream=record.is_stream,
            prompt_tokens=view.num_prompt,
            cached_tokens=view.num_cached,
            computed_tokens=view.num_computed,
            known_tokens=view.num_known,
            most_tokens=view.max_total,
            drafts=view.num_drafts,
            accepted_drafts=view.num_accepted_drafts,
            reason=view.reason,
            cells=cells,
        )

    def _waiting(self, record: Record, now: float) -> LiveRequest:
        is_admitted = record.entered_at is not None
        is_without = is_admitted and not self._server.llm.num_ready()
        return LiveRequest(
            model=self._server.model_name,
            id=record.request_id,
            state="submitted" if is_admitted else "admission",
            engine=None,
            age_ms=_age(record, now),
            is_stream=record.is_stream,
            prompt_tokens=record.num_prompt_tokens,
            cached_tokens=0,
            computed_tokens=0,
            known_tokens=record.num_prompt_tokens,
            most_tokens=None,
            drafts=0,
            accepted_drafts=0,
            reason=RESTART if is_without else "",
            cells=(),
        )


def _map(view: EngineView) -> LiveMap:
    occupancy = view.occupancy
    return LiveMap(
        cell_blocks=occupancy.cell_blocks,
        used=occupancy.used[:MAX_CELLS],
        kept=occupancy.kept[:MAX_CELLS],
    )


def _state_of(view: SequenceView) -> RequestState:
    if view.state == "running":
        return "prefill" if view.num_computed < view.num_prompt else "decode"
    return "held" if view.state == "held" else "waiting"


def _age(record: Record, now: float) -> float:
    return round(1000 * (now - record.began), 1)
