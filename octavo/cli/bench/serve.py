"""Measures a running server: rates, and the times that its clients wait for tokens.

It sends requests to any server with OpenAI's routes, reads the streams, and counts the tokens as
the server's `usage` does. Options, table and --save-result are as those of `vllm bench serve`. The
first request is a trial and is not counted. Start the server on other processors than this command
where you can: on the same ones each takes time from the other.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo import env
from octavo.cli.bench.serve_options import (
    ENDPOINTS,
    SAMPLING,
    add_arguments,
    check,
    names_of,
    pairs_of,
    percentiles_of,
    url_of,
)
from octavo.cli.commands import FAILED, INTERRUPTED, OK
from octavo.cli.output import ProgressLine, table

if TYPE_CHECKING:
    from octavo.bench.served.answer import Asked
    from octavo.bench.served.client import Client
    from octavo.bench.served.measure import Plan, Run

__all__ = ["add_arguments", "run"]

_MOST_ERRORS = 5  # different ones that are shown


def run(arguments: argparse.Namespace) -> int:
    """Send the requests, and print or write the figures."""
    check(arguments)
    import asyncio

    from octavo.bench.served.client import Client
    from octavo.bench.served.figures import figures, read_goals
    from octavo.bench.served.measure import REQUEST_SECONDS
    from octavo.route.address import read_address

    names = names_of(arguments.percentile_metrics)
    percentiles = percentiles_of(arguments.metric_percentiles)
    goals = read_goals(arguments.goodput)
    address = read_address(url_of(arguments))
    headers = pairs_of("header", arguments.header)
    metadata = pairs_of("metadata", arguments.metadata)
    if key := env.client_api_key():
        headers.setdefault("Authorization", f"Bearer {key}")
    client = Client(address, headers, REQUEST_SECONDS)
    plan, done = asyncio.run(_measured(arguments, client, url_of(arguments)))
    found = figures(done.answers, max(done.ended - done.began, 1e-9), percentiles, goals)
    told = _told(arguments, plan, done, found) | metadata
    if arguments.json:
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
    else:
        sys.stdout.write(as_text(found, names, percentiles))
    if arguments.save_result or arguments.save_detailed:
        _write(arguments, told)
    _show_errors(done)
    if len(done.answers) < arguments.num_prompts:
        sys.stderr.write(f"interrupted after {len(done.answers):,} answers\n")
        return INTERRUPTED
    return OK if found["completed"] else FAILED


async def _measured(arguments: argparse.Namespace, client: Client, url: str) -> tuple[Plan, Run]:
    """Return how the requests were sent, and what was seen of their answers."""
    try:
        return await _answered(arguments, client, url)
    finally:
        await client.close()


async def _answered(arguments: argparse.Namespace, client: Client, url: str) -> tuple[Plan, Run]:
    from octavo.bench.served import measure

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
    plan = _plan(arguments, model)
    chance = random.Random(arguments.seed)
    asked = await _requests(arguments, client, model, chance)
    measure.check_chat(asked, plan.endpoint)
    trial = await measure.ask(client, plan, asked[0])
    if trial.error:
        raise measure.NoServerError(f"the first request has failed: {trial.error}")
    for _ in range(arguments.num_warmups):
        await measure.ask(client, plan, asked[0])
    progress = None if arguments.disable_tqdm else ProgressLine()

    def watch(run: Run) -> None:
        count, whole = len(run.answers), len(asked)
        if progress is not None and progress.is_due(is_end=count == whole):
            rate = run.num_tokens / progress.seconds
            progress.write(
                f"{count:,} of {whole:,} answers, {run.num_open:,} open, {rate:,.0f} tok/s"
            )

    done = await measure.measure(client, plan, asked, chance, watch)
    if progress is not None:
        progress.close()
    return plan, done


def _plan(arguments: argparse.Namespace, model: str) -> Plan:
    from octavo.bench.served.measure import Plan

    fields: dict[str, Any] = {"model": model}
    for name in SAMPLING:
        if getattr(arguments, name) is not None:
            fields[name] = getattr(arguments, name)
    if arguments.ignore_eos:
        fields["ignore_eos"] = True
    return Plan(
        endpoint=arguments.endpoint or ENDPOINTS[arguments.backend],
        fields=fields | arguments.extra_body,
        rate=arguments.request_rate,
        burstiness=arguments.burstiness,
        most_at_once=arguments.max_concurrency,
    )


async def _requests(
    arguments: argparse.Namespace, client: Client, model: str, chance: random.Random
) -> list[Asked]:
    """Return the requests of the data that was chosen."""
    from octavo.bench.served import prompts
    from octavo.bench.served.measure import words_per_token

    count, path = arguments.num_prompts, arguments.dataset_path
    if arguments.dataset_name == "sharegpt":
        found = prompts.read_sharegpt(path, arguments.sharegpt_output_len)
        return prompts.chosen(found, count, chance)
    if arguments.dataset_name == "custom":
        found = prompts.read_lines(path, arguments.custom_output_len)
        return prompts.chosen(found, count, chance)
    ratio = await words_per_token(client, model, prompts.WORDS)
    if arguments.dataset_name == "random":
        lengths = prompts.Lengths(
            arguments.random_input_len,
            arguments.random_output_len,
            arguments.random_prefix_len,
            arguments.random_range_ratio,
        )
        return prompts.random_requests(count, lengths, ratio, chance)
    lengths = prompts.Lengths(
        arguments.prefix_repetition_suffix_len,
        arguments.prefix_repetition_output_len,
        arguments.prefix_repetition_prefix_len,
    )
    number = arguments.prefix_repetition_num_prefixes
    return prompts.repeated_prefixes(count, number, lengths, ratio, chance)


def _told(
    arguments: argparse.Namespace, plan: Plan, done: Run, found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is written as JSON, under vLLM's names."""
    rate = plan.rate if math.isfinite(plan.rate) else "inf"
    told = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": arguments.backend,
        "label": arguments.label,
        "model_id": plan.fields["model"],
        "num_prompts": arguments.num_prompts,
        "request_rate": rate,
        "burstiness": plan.burstiness,
        "max_concurrency": plan.most_at_once,
        **found,
    }
    if arguments.save_detailed:
        answers = done.answers
        told |= {
            "input_lens": [each.num_prompt_tokens for each in answers],
            "output_lens": [each.tokens for each in answers],
            "ttfts": [None if each.error else each.first_seconds for each in answers],
            "itls": [each.gaps for each in answers],
            "generated_texts": [each.text for each in answers],
            "errors": [each.error for each in answers],
        }
    return told


def _write(arguments: argparse.Namespace, told: Mapping[str, Any]) -> None:
    name = arguments.result_filename
    if name is None:
        model = str(told["model_id"]).rpartition("/")[2]
        label = arguments.label or arguments.backend
        name = f"{label}-{told['request_rate']}qps-{model}-{told['date']}.json"
    path = (arguments.result_dir or Path()) / name
    path.write_text(json.dumps(told), "utf-8")
    sys.stderr.write(f"written to {path}\n")


def _show_errors(done: Run) -> None:
    """Show how often each error has come."""
    errors = Counter(each.error for each in done.answers if each.error)
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
        ]
    return table(rows, right=(1,))
