"""The figures of a measured server as tables, JSON and pictures."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.output import table

if TYPE_CHECKING:
    from octavo.bench.plot.panel import Panel
    from octavo.bench.served.measure import Plan, Run
    from octavo.bench.served.sweep import Knee, Point

_MOST_ERRORS = 5  # different ones that are shown
_NO_NAME = re.compile(r"[^\w.+-]+")  # of a file; a server gives its model's name
_MOST_NAME = 100
_COLUMNS = ("ttft", "tpot")  # of a sweep's table


def head_of(arguments: argparse.Namespace, plan: Plan, count: int) -> dict[str, Any]:
    """Return how the requests were sent, under vLLM's names."""
    pace = plan.pace
    found = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": arguments.backend,
        "label": arguments.label,
        "model_id": plan.fields["model"],
        "dataset_name": arguments.dataset_name,
        "num_prompts": count,
        "request_rate": pace.rate if math.isfinite(pace.rate) else "inf",
        "burstiness": pace.burstiness if math.isfinite(pace.burstiness) else "inf",
        "self_timed": pace.is_self_timed,
        "max_concurrency": plan.most_at_once,
    }
    if pace.ramp is not None:
        found |= {
            "ramp_up_strategy": pace.ramp.strategy,
            "ramp_up_start_rps": pace.ramp.start,
            "ramp_up_end_rps": pace.ramp.end,
        }
    return found


def details_of(done: Run) -> dict[str, Any]:
    """Return the lengths and times of each answer, under vLLM's names."""
    answers = done.answers
    return {
        "input_lens": [each.num_prompt_tokens for each in answers],
        "output_lens": [each.tokens for each in answers],
        "latencies": [each.seconds for each in answers],
        "start_times": [each.began - done.began for each in answers],
        "ttfts": [None if each.error else each.first_seconds for each in answers],
        "itls": [each.gaps for each in answers],
        "generated_texts": [each.text for each in answers],
        "errors": [each.error for each in answers],
    }


def sweep_of(arguments: argparse.Namespace, points: Sequence[Point], knee: Knee) -> dict[str, Any]:
    """Return the knee and the runs that have shown it."""
    from octavo.bench.served.figures import read_goals

    return {
        "goodput": read_goals(arguments.goodput),
        "goodput_share": arguments.goodput_share,
        "knee": {"request_rate": knee.holds_at, "fails_at": knee.fails_at, "ended": knee.why},
        "runs": [
            {
                "request_rate": each.rate,
                "goodput_share": each.share,
                "holds": each.holds,
                **each.figures,
            }
            for each in points
        ],
    }


def write_all(arguments: argparse.Namespace, told: Mapping[str, Any]) -> None:
    """Print the JSON and write it to files, wherever it is asked for."""
    if arguments.json:
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
    if arguments.output_json is not None:
        arguments.output_json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    if not (arguments.save_result or arguments.save_detailed):
        return
    name = arguments.result_filename
    if name is None:
        model = _NO_NAME.sub("_", str(told["model_id"]).rpartition("/")[2])[:_MOST_NAME]
        label = arguments.label or arguments.backend
        name = f"{label}-{told['request_rate']}qps-{model}-{told['date']}.json"
    path = (arguments.result_dir or Path()) / name
    path.write_text(json.dumps(told), "utf-8")
    sys.stderr.write(f"written to {path}\n")


def show_errors(runs: Iterable[Run]) -> None:
    """Show how often each error has come."""
    errors = Counter(each.error for run in runs for each in run.answers if each.error)
    for error, count in errors.most_common(_MOST_ERRORS):
        sys.stderr.write(f"{count:,} failed: {error}\n")
    if len(errors) > _MOST_ERRORS:
        sys.stderr.write(f"and {len(errors) - _MOST_ERRORS:,} other errors\n")


def as_text(found: Mapping[str, Any], names: Sequence[str], percentiles: Sequence[float]) -> str:
    """Format the figures as a table."""
    from octavo.bench.served.figures import TIMES

    rows = [
        ("Successful requests:", f"{found['completed']:,}"),
        ("Failed requests:", f"{found['failed']:,}"),
        ("Benchmark duration (s):", f"{found['duration']:.2f}"),
        ("Total input tokens:", f"{found['total_input_tokens']:,}"),
        ("Total generated tokens:", f"{found['total_output_tokens']:,}"),
        ("Request throughput (req/s):", f"{found['request_throughput']:.2f}"),
        ("Output token throughput (tok/s):", f"{found['output_throughput']:.2f}"),
        ("Total token throughput (tok/s):", f"{found['total_token_throughput']:.2f}"),
        ("Peak output token throughput (tok/s):", f"{found['max_output_tokens_per_s']:.2f}"),
        ("Peak concurrent requests:", f"{found['max_concurrent_requests']:,}"),
    ]
    if found["request_goodput"] is not None:
        rows.insert(6, ("Request goodput (req/s):", f"{found['request_goodput']:.2f}"))
    shown = [each for each in TIMES if each in names and f"mean_{each}_ms" in found]
    for name in shown:
        rows.append(("", ""))
        rows.append((f"{TIMES[name]}:", ""))
        short = name.upper()
        rows.append((f"Mean {short} (ms):", f"{found[f'mean_{name}_ms']:.2f}"))
        rows.append((f"Median {short} (ms):", f"{found[f'median_{name}_ms']:.2f}"))
        rows += [
            (f"P{each:g} {short} (ms):", f"{found[f'p{each:g}_{name}_ms']:.2f}")
            for each in percentiles
            if each != 50  # the median
        ]
    return table(rows, right=(1,))


def sweep_as_text(points: Sequence[Point], knee: Knee, enough: float) -> str:
    """Format the runs by rate, and the knee below them."""
    heads = [f"P{at} {name.upper()}" for name in _COLUMNS for at in (50, 99)]
    rows = [("RATE", "ANSWERED/S", "TOK/S", *heads, "GOOD", "")]
    for each in sorted(points, key=lambda point: point.rate):
        found = each.figures
        times = [
            f"{found[key]:,.1f}" if key in found else "–"
            for key in (f"p{at}_{name}_ms" for name in _COLUMNS for at in (50, 99))
        ]
        rates = (f"{found['request_throughput']:,.2f}", f"{found['output_throughput']:,.1f}")
        verdict = "holds" if each.holds else "too few"
        rows.append((f"{each.rate:.4g}", *rates, *times, f"{each.share:.1%}", verdict))
    text = table(rows, right=range(len(rows[0]) - 1))
    return f"{text}\nTimes are in milliseconds. {_verdict(knee, enough)}\n"


def _verdict(knee: Knee, enough: float) -> str:
    """Say in a sentence where the knee is."""
    end = f" It has ended because {knee.why}." if knee.why else ""
    if knee.holds_at is None:
        none = f"No rate had {enough:.0%} of the answers in time"
        below = "" if knee.fails_at is None else f", down to {knee.fails_at:.4g} requests/s"
        return f"{none}{below}.{end}"
    above = (
        "no rate that was tried is too high"
        if knee.fails_at is None
        else f"{knee.fails_at:.4g} is too high"
    )
    return f"The knee is at {knee.holds_at:.4g} requests/s; {above}.{end}"


def drawn_run(result: Mapping[str, Any], done: Run) -> tuple[str, str, list[Panel]]:
    """Return the title, the line below it, and the panels of one run."""
    from octavo.bench.plot.measured import run_panels

    rate = result["request_rate"]
    pace = "all at once" if rate == "inf" else f"{rate:g} requests/s"
    if result["self_timed"]:
        pace = "at the times of the trace"
    if result.get("ramp_up_strategy"):
        pace = f"{result['ramp_up_start_rps']:g} to {result['ramp_up_end_rps']:g} requests/s"
    about = (
        f"{result['completed']:,} requests of {result['dataset_name']}, {pace}: "
        f"{result['request_throughput']:.2f} answered/s, "
        f"{result['output_throughput']:,.0f} tokens/s"
    )
    return str(result["model_id"]), about, run_panels(done.answers)


def drawn_sweep(result: Mapping[str, Any]) -> tuple[str, str, list[Panel]]:
    """Return the title, the line below it, and the panels of a sweep."""
    from octavo.bench.plot.measured import sweep_panels

    knee = result["knee"]
    panels = sweep_panels(
        result["runs"],
        result["goodput"],
        result["goodput_share"],
        knee["request_rate"],
        knee["fails_at"],
    )
    goals = ", ".join(f"{name.upper()} {most:g} ms" for name, most in result["goodput"].items())
    about = (
        f"{result['num_prompts']:,} requests of {result['dataset_name']} at each rate; "
        f"{result['goodput_share']:.0%} must meet {goals}"
    )
    return str(result["model_id"]), about, panels


def write_plot(path: Path, drawn: tuple[str, str, Sequence[Panel]]) -> None:
    """Write the picture, and say where it is."""
    from octavo.bench.plot.picture import write

    write(path, *drawn)
    sys.stderr.write(f"written to {path}\n")
