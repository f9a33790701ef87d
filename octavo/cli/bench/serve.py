"""Measures a running server: rates, and the times that its clients wait for tokens.

It sends requests to any server with OpenAI's routes, reads the streams, and counts the tokens as
the server's `usage` does. Options, table and --save-result are as those of `vllm bench serve`. The
first request is a trial and is not counted. With --sweep it measures at several rates, and finds
the highest at which enough answers meet --goodput. Start the server on other processors than this
command where you can: on the same ones each takes time from the other.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octavo import env
from octavo.cli.bench import serve_output as output
from octavo.cli.bench.data_options import data_of
from octavo.cli.bench.serve_options import (
    ENDPOINTS,
    SAMPLING,
    add_arguments,
    check,
    ignores_eos,
    is_self_timed,
    names_of,
    notes_of,
    pairs_of,
    percentiles_of,
    rates_of,
    url_of,
)
from octavo.cli.commands import FAILED, INTERRUPTED, OK
from octavo.cli.output import ProgressLine

if TYPE_CHECKING:
    from octavo.bench.load.asked import Asked
    from octavo.bench.load.source import Source
    from octavo.bench.served.client import Client
    from octavo.bench.served.measure import Plan, Run
    from octavo.bench.served.sweep import Knee, Point

__all__ = ["add_arguments", "run"]

_FIRST_RATE = 1.0  # of a sweep, in requests a second


@dataclass(slots=True)
class _Session:
    """A server that has answered a trial, and what is sent to it."""

    arguments: argparse.Namespace
    client: Client
    plan: Plan
    source: Source
    words_per_token: float = 1.0

    def requests(self, number: int) -> tuple[list[Asked], random.Random]:
        """Return the requests of a run and its chance; each run has other words."""
        from octavo.bench.load.asked import with_adapters
        from octavo.bench.load.writers import words

        arguments = self.arguments
        seed = f"{arguments.seed} {number}" if number else str(arguments.seed)
        chance = random.Random(seed)
        asked = self.source(chance, words(self.words_per_token, seed))
        in_turn = arguments.lora_assignment == "round-robin"
        return with_adapters(asked, arguments.lora_modules, in_turn, chance), chance


def run(arguments: argparse.Namespace) -> int:
    """Send the requests, and print or write the figures."""
    check(arguments)
    for note in notes_of(arguments):
        sys.stderr.write(f"{note}\n")
    import asyncio

    from octavo.bench.load.source import open_source
    from octavo.bench.served.client import Client
    from octavo.bench.served.figures import read_goals
    from octavo.bench.served.measure import REQUEST_SECONDS
    from octavo.route.address import read_address

    names_of(arguments.percentile_metrics)
    percentiles_of(arguments.metric_percentiles)
    goals = read_goals(arguments.goodput)
    address = read_address(url_of(arguments))
    headers = pairs_of("header", arguments.header)
    metadata = pairs_of("metadata", arguments.metadata)
    source = open_source(data_of(arguments))
    if key := env.client_api_key():
        headers.setdefault("Authorization", f"Bearer {key}")
    client = Client(address, headers, REQUEST_SECONDS)
    session = _Session(arguments, client, _plan(arguments), source)
    if arguments.sweep is None:
        done, count = asyncio.run(_with_client(session, _one_run))
        return _show_run(session, done, count, goals, metadata)
    points: list[Point] = []
    runs: list[Run] = []
    knee = asyncio.run(_with_client(session, lambda each: _sweep(each, goals, points, runs)))
    return _show_sweep(session, points, knee, runs, metadata)


async def _with_client(session: _Session, measurement: Any) -> Any:
    """Return what a measurement finds at a server that has answered a trial."""
    try:
        await _try_server(session)
        return await measurement(session)
    finally:
        await session.client.close()


async def _try_server(session: _Session) -> None:
    """Find the server's model, send a trial and the warm-ups, and learn how long a word is."""
    from octavo.bench.load.writers import WORDS
    from octavo.bench.served import measure

    arguments, client, url = session.arguments, session.client, url_of(session.arguments)
    try:
        models = await measure.reach(client, arguments.ready_check_timeout_sec)
    except measure.NoServerError as error:
        raise measure.NoServerError(
            f"there is no server to measure at {url}: {error}; start one with "
            "`octavo serve MODEL`, or give the URL of another"
        ) from None
    if arguments.model is None and not models:
        raise measure.NoServerError(f"the server at {url} has no model; give one with --model")
    model = models[0] if arguments.model is None else arguments.model
    session.plan.fields.setdefault("model", model)
    session.words_per_token = await measure.words_per_token(client, model, WORDS)
    asked, _ = session.requests(0)
    measure.check_chat(asked, session.plan.endpoint)
    trial = await measure.ask(client, session.plan, asked[0])
    if trial.error:
        raise measure.NoServerError(f"the first request has failed: {trial.error}")
    for _ in range(arguments.num_warmups):
        await measure.ask(client, session.plan, asked[0])


def _plan(arguments: argparse.Namespace) -> Plan:
    from octavo.bench.served.arrivals import Pace, Ramp
    from octavo.bench.served.measure import Plan

    fields: dict[str, Any] = {}
    for name in SAMPLING:
        if getattr(arguments, name) is not None:
            fields[name] = getattr(arguments, name)
    if ignores_eos(arguments):
        fields["ignore_eos"] = True
    ramp = None
    if arguments.ramp_up_strategy is not None:
        first, last = arguments.ramp_up_start_rps, arguments.ramp_up_end_rps
        ramp = Ramp(arguments.ramp_up_strategy, first, last)
    timed = is_self_timed(arguments)
    return Plan(
        endpoint=arguments.endpoint or ENDPOINTS[arguments.backend],
        fields=fields | arguments.extra_body,
        pace=Pace(arguments.request_rate, arguments.burstiness, ramp, timed),
        most_at_once=arguments.max_concurrency,
    )


async def _one_run(session: _Session) -> tuple[Run, int]:
    """Return what was seen of the answers, and how many there should be."""
    asked, chance = session.requests(0)
    return await _measured(session, session.plan, asked, chance, ""), len(asked)


async def _measured(
    session: _Session, plan: Plan, asked: Sequence[Asked], chance: random.Random, head: str
) -> Run:
    """Send the requests, and show how far they are."""
    from octavo.bench.served.measure import measure

    progress = None if session.arguments.disable_tqdm else ProgressLine()

    def watch(run: Run) -> None:
        count, whole = len(run.answers), len(asked)
        if progress is not None and progress.is_due(is_end=count == whole):
            rate = run.num_tokens / progress.seconds
            progress.write(
                f"{head}{count:,} of {whole:,} answers, {run.num_open:,} open, {rate:,.0f} tok/s"
            )

    done = await measure(session.client, plan, asked, chance, watch)
    if progress is not None:
        progress.close()
    return done


async def _sweep(
    session: _Session, goals: Mapping[str, float], points: list[Point], runs: list[Run]
) -> Knee:
    """Measure at several rates, and return the knee that they show."""
    from octavo.bench.served.figures import figures, num_good
    from octavo.bench.served.sweep import Point, each_of, search

    arguments, plan = session.arguments, session.plan
    percentiles = sorted({50.0, 99.0, *percentiles_of(arguments.metric_percentiles)})

    async def attempt(rate: float) -> Point | None:
        asked, chance = session.requests(1 + len(points))
        own = replace(plan, pace=replace(plan.pace, rate=rate))
        run = await _measured(session, own, asked, chance, f"{rate:.3g} requests/s: ")
        runs.append(run)
        if len(run.answers) < len(asked):
            return None
        found = figures(run.answers, max(run.ended - run.began, 1e-9), percentiles, goals)
        share = num_good(run.answers, goals) / len(asked)
        is_enough = share >= arguments.goodput_share
        return Point(rate, share, is_enough, len(asked), found)

    if rates := rates_of(arguments.sweep):
        return await each_of(attempt, rates, points)
    has_rate = arguments.request_rate < float("inf")
    return await search(attempt, arguments.request_rate if has_rate else _FIRST_RATE, points)


def _show_run(
    session: _Session,
    done: Run,
    count: int,
    goals: Mapping[str, float],
    metadata: dict[str, str],
) -> int:
    """Print and write the figures of one run, and return the exit code."""
    from octavo.bench.served.figures import figures

    arguments = session.arguments
    percentiles = percentiles_of(arguments.metric_percentiles)
    found = figures(done.answers, max(done.ended - done.began, 1e-9), percentiles, goals)
    told = output.head_of(arguments, session.plan, count) | found
    if arguments.save_detailed:
        told |= output.details_of(done)
    output.write_all(arguments, told | metadata)
    if not arguments.json:
        names = names_of(arguments.percentile_metrics)
        sys.stdout.write(output.as_text(found, names, percentiles))
    if arguments.plot is not None:
        output.write_plot(arguments.plot, output.drawn_run(told, done))
    output.show_errors([done])
    if len(done.answers) < count:
        sys.stderr.write(f"interrupted after {len(done.answers):,} answers\n")
        return INTERRUPTED
    return OK if found["completed"] else FAILED


def _show_sweep(
    session: _Session,
    points: Sequence[Point],
    knee: Knee,
    runs: Sequence[Run],
    metadata: dict[str, str],
) -> int:
    """Print and write the figures at each rate and the knee, and return the exit code."""
    arguments = session.arguments
    count = points[0].num_requests if points else arguments.num_prompts
    told = output.head_of(arguments, session.plan, count)
    told |= output.sweep_of(arguments, points, knee)
    output.write_all(arguments, told | metadata)
    if not arguments.json:
        sys.stdout.write(output.sweep_as_text(points, knee, arguments.goodput_share))
    if arguments.plot is not None and points:
        output.write_plot(arguments.plot, output.drawn_sweep(told))
    output.show_errors(runs)
    if len(points) < len(runs):
        sys.stderr.write(f"interrupted after {len(points):,} rates\n")
        return INTERRUPTED
    return OK if any(each.figures["completed"] for each in points) else FAILED
