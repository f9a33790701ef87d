"""A frame of the live stream as text: a page for a terminal, or one line for a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from octavo.cli.output import table
from octavo.loader_process.messages import printable
from octavo.serving.live.schema import (
    LiveEngine,
    LiveFrame,
    LiveModel,
    LiveRequest,
    LiveTimes,
)

BAR = 24  # characters of a request's bar
_MAP = " ░▒▓█"
_MOST_ID = 36
_STATES = {
    "restarting": "is being restarted",
    "sleeping": "sleeps",
    "stopped": "has stopped",
    "draining": "is shutting down",
    "paused": "is paused",
}


def page(frame: LiveFrame, before: LiveFrame | None, width: int, height: int) -> list[str]:
    """Return the lines of a terminal of some size."""
    lines = [_head(frame)]
    for index, model in enumerate(frame.models):
        earlier = _earlier(before, index, model)
        lines += ["", *_model(model, earlier, _seconds(frame, before), width)]
    if not frame.models:
        lines += ["", "no model is loaded yet"]
    lines += ["", *_requests(frame, max(0, height - len(lines) - 3))]
    return [line[:width] for line in lines[:height]]


def line(frame: LiveFrame, before: LiveFrame | None) -> str:
    """Return a frame as one line, model after model."""
    parts = []
    for index, model in enumerate(frame.models):
        earlier = _earlier(before, index, model)
        generated, prompts = _rates(model, earlier, _seconds(frame, before))
        running = sum(each.running for each in model.engines)
        waiting = model.queue_requests + sum(each.waiting for each in model.engines)
        parts.append(
            f"{printable(model.name)} {model.state} running={running} waiting={waiting} "
            f"kv={_kv(model.engines):.0f}% out={generated:.0f}tok/s in={prompts:.0f}tok/s "
            f"ttft={model.first_token.mean_ms:.0f}ms itl={model.between_tokens.mean_ms:.1f}ms"
        )
    return " | ".join(parts) or "no model is loaded yet"


def _earlier(before: LiveFrame | None, index: int, model: LiveModel) -> LiveModel | None:
    found = before.models[index] if before and index < len(before.models) else None
    return found if found is not None and found.name == model.name else None


def _seconds(frame: LiveFrame, before: LiveFrame | None) -> float:
    return 0.0 if before is None else frame.uptime_seconds - before.uptime_seconds


def _rates(model: LiveModel, before: LiveModel | None, seconds: float) -> tuple[float, float]:
    """Return the tokens a second that were generated, and those of prompts that were computed."""
    if before is None or seconds <= 0:
        return 0.0, 0.0
    pairs = zip_longest(model.engines, before.engines[: len(model.engines)])
    prompts = sum(now.prefill_tokens - then.prefill_tokens for now, then in pairs if now and then)
    generated = model.generated_tokens - before.generated_tokens
    return max(0, generated) / seconds, max(0, prompts) / seconds


def _head(frame: LiveFrame) -> str:
    keys = "   other keys' requests are not shown" if frame.is_shared else ""
    return f"octavo {printable(frame.version)}   up {_duration(frame.uptime_seconds)}{keys}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _model(model: LiveModel, before: LiveModel | None, seconds: float, width: int) -> Iterator[str]:
    state = "" if model.state == "ready" else f" {_STATES.get(model.state, model.state)}"
    yield (
        f"{printable(model.name)}{state}   queue {model.queue_requests} "
        f"({model.queue_tokens:,} tokens)   admitted {model.admitted} of {model.capacity}"
    )
    generated, prompts = _rates(model, before, seconds)
    yield (
        f"  out {generated:,.0f} tok/s   in {prompts:,.0f} tok/s   "
        f"TTFT {_times(model.first_token, 0)}   ITL {_times(model.between_tokens, 1)}   "
        f"whole {_times(model.whole, 0)}"
    )
    for number, engine in enumerate(model.engines):
        yield f"  engine {number}: {_engine(engine)}"
        if engine.map is not None:
            yield f"  [{_cells(engine, max(8, width - 5))}]"


def _engine(engine: LiveEngine) -> str:
    if not engine.is_ready:
        return f"not ready   deaths {engine.deaths}   restarts {engine.restarts}"
    why = f" for {printable(engine.blocked_by)}" if engine.blocked_by and engine.waiting else ""
    parts = [
        f"{engine.running} of {engine.slots} running, {engine.waiting} waiting{why}",
        f"step {engine.step_ms:.1f} ms",
        f"KV {_kv([engine]):.0f} % of {engine.blocks:,} blocks",
    ]
    if engine.drafts:
        parts.append(f"drafts accepted {100 * engine.accepted_drafts / engine.drafts:.0f} %")
    if engine.preemptions:
        parts.append(f"preemptions {engine.preemptions:,}")
    if engine.deaths:
        parts.append(f"deaths {engine.deaths}")
    return "   ".join(parts)


def _kv(engines: list[LiveEngine]) -> float:
    """Return the blocks in use, per cent."""
    blocks = sum(each.blocks for each in engines)
    free = sum(min(each.blocks, each.free_blocks) for each in engines)
    return 100 * (blocks - free) / blocks if blocks else 0.0


def _cells(engine: LiveEngine, width: int) -> str:
    """Return the map in so many characters: a full block is used, a light one is kept."""
    assert engine.map is not None
    used, kept = engine.map.used, engine.map.kept
    num_each = max(1, -(-len(used) // width))
    text = ""
    for begin in range(0, len(used), num_each):
        here = used[begin : begin + num_each]
        share = sum(here) / len(here)
        is_kept = any(kept[begin : begin + num_each])
        level = -(-share * 3 // 100) + 1 if share else float(is_kept)
        text += _MAP[int(min(level, 4))]
    return text


def _times(times: LiveTimes, digits: int) -> str:
    if not times.count:
        return "-"
    return f"{times.mean_ms:,.{digits}f} ms (p95 {times.p95_ms:,.{digits}f})"


def _requests(frame: LiveFrame, most: int) -> list[str]:
    """Return a table of the requests, as many as there is room for."""
    if not frame.requests:
        return ["no request is running"]
    rows: list[tuple[str, ...]] = [("STATE", "REQUEST", "PROMPT", "CACHED", "OUT", "AGE", "")]
    rows += [_row(each) for each in frame.requests[:most]]
    lines = table(rows, right=(2, 3, 4, 5)).splitlines()
    hidden = len(frame.requests) - most + frame.left_out
    return [*lines, f"and {hidden} more"] if hidden > 0 else lines


def _row(request: LiveRequest) -> tuple[str, ...]:
    num_out = max(0, request.known_tokens - request.prompt_tokens)
    return (
        f"{request.state}: {printable(request.reason)}" if request.reason else request.state,
        printable(request.id)[:_MOST_ID],
        f"{request.prompt_tokens:,}",
        f"{request.cached_tokens:,}",
        f"{num_out:,}",
        f"{request.age_ms / 1000:.1f} s",
        _bar(request),
    )


def _bar(request: LiveRequest) -> str:
    """Return the way of a request to its last token: cached, computed, generated, to come."""
    most = request.most_tokens
    if not most:
        return ""
    ends = (request.cached_tokens, min(request.computed_tokens, request.prompt_tokens))
    places = [min(BAR, BAR * each // most) for each in (*ends, request.known_tokens)]
    cached, prefilled, known = places
    known = prefilled if request.state != "decode" else max(known, prefilled)
    cached = min(cached, prefilled)
    return (
        "=" * cached + "#" * (prefilled - cached) + ">" * (known - prefilled) + "." * (BAR - known)
    )
