"""Attacks a server with every kind of hostile request while other clients' streams are watched.

    python -m benchmarks.hostile --requests 10000 [--only "trailers"] [--model smollm2]
    python -m benchmarks.hostile --requests 0 --calls 0 --adapters 5000

A real server uses a real engine process; the hostile clients are another process, and the watched
streams a third. Wrong requests must get nothing but 4xx, no stream may change or pause for 100 ms
longer than it does undisturbed, the front end stays below 300 MB, and nothing may be left behind.
Without `--only`, another server's gRPC interface is attacked too, with `--calls` calls in each way,
and one key makes a third server keep files, batches and responses (`keeping`).
In the end one key takes all that it can get, and another key's request must start nevertheless.
A server of several models has them all asked for by one key (`several`), and a router stands in
front of servers and publishers that lie (`router`). Readers of KV events ask for too much
(`events`). `octavo bench serve` measures a server that lies, and reads damaged traces (`measured`).
Then a server with a real engine loads damaged adapters beside streams (`adapters.files`).
With 0 requests, calls, models, routed or adapters that part is left out.
The exit code is 1 if any of this fails.

`--only WORDS --list` prints the names of the kinds. `--attack N` carries out one attack of the mix
that the other arguments choose, and prints it with its responses; the server logs to this terminal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.hostile.adapters.files import attack_by_files
from benchmarks.hostile.calls import attack_calls
from benchmarks.hostile.devices.attack import attack_devices
from benchmarks.hostile.events.readers import attack_readers
from benchmarks.hostile.keeping import faults_of_keeping, pauses_of_keeping, settings_in
from benchmarks.hostile.measured.attack import attack_measurements
from benchmarks.hostile.router.attack import attack_router
from benchmarks.hostile.run import ALL_KINDS, SETTINGS, Options, log_faults, measure, show
from benchmarks.hostile.several import attack_models
from benchmarks.served.client import Served


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1800.0, help="the longest duration")
    parser.add_argument("--calls", type=int, default=4000, help="in each attack on gRPC; 0: none")
    parser.add_argument("--adapters", type=int, default=400, help="damaged ones; 0: none")
    parser.add_argument("--models", type=int, default=200, help="for several models; 0: none")
    parser.add_argument("--routed", type=int, default=600, help="for a router; 0: none")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--baseline", type=float, default=10.0, help="seconds without attacks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="kinds whose name contains these words")
    parser.add_argument("--list", action="store_true", help="print the kinds")
    parser.add_argument("--attack", type=int, metavar="N", help="show one attack of the mix")
    parser.add_argument("--log", type=Path, help="where to keep the server's log")
    parser.add_argument("--model", help="a real model instead of the fake runner")
    given = parser.parse_args()
    # A shell's background job ignores it, and so would the commands that are interrupted here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kinds = [kind for kind in ALL_KINDS if given.only in kind.name]
    if given.list or not kinds:
        print("\n".join(kind.name for kind in kinds or ALL_KINDS))
        return int(not kinds)
    options = Options(
        num_requests=given.requests,
        num_clients=given.clients,
        baseline_seconds=given.baseline,
        max_seconds=given.seconds,
        seed=given.seed,
        kinds=kinds,
        model=given.model,
    )
    settings = SETTINGS | {"model": given.model}
    if given.attack is not None:
        with Served(settings) as served:
            asyncio.run(show(served, options, given.attack))
        return 0
    with tempfile.TemporaryDirectory() as name:
        report: dict[str, Any] = {"faults": [], "pauses": []}
        if given.requests:
            report = attack_by_requests(settings, options, given.log or Path(name) / "log")
        if given.calls and not given.only and given.model is None:
            report["faults"] += faults_of_calls(given.calls, Path(name) / "calls")
        if given.requests and not given.only:
            keep_much(report, Path(name))
        if given.models and not given.only:
            report["faults"] += attack_models(given.models, Path(name) / "models", given.seed)
        if given.routed and not given.only:
            report["faults"] += attack_router(given.routed, Path(name) / "router", given.seed)
            report["faults"] += attack_readers(Path(name) / "events")
            report["faults"] += attack_measurements(Path(name), given.routed, given.seed)
            report["faults"] += attack_devices(Path(name) / "devices", given.seed)
        if given.adapters and not given.only:
            report["adapters"] = attack_by_files(given.adapters, options, Path(name))
            for kind in ("faults", "pauses"):
                report[kind] += report["adapters"].pop(kind)
    print(json.dumps(report, indent=1))
    return int(bool(report["faults"] or report["pauses"]))


def attack_by_requests(settings: dict[str, Any], options: Options, log: Path) -> dict[str, Any]:
    """Let a server of its own be attacked by the mix; return the report."""
    with log.open("w") as file, Served(settings, file) as served:
        report = uvloop.run(measure(served, options, log))
        code = served.end()
    if code:
        report["faults"].append(f"its exit code is {code}")
    return report


def faults_of_calls(num_calls: int, log: Path) -> list[str]:
    """Return the faults of a server of its own whose gRPC interface is attacked."""
    settings = SETTINGS | {"model": None, "server": SETTINGS["server"] | {"grpc_port": 0}}
    with log.open("w") as file, Served(settings, file) as served:
        faults = attack_calls(served, num_calls)
        code = served.end()
    if code:
        faults.append(f"its exit code is {code}")
    return [f"gRPC: {fault}" for fault in faults + log_faults(log)]


def keep_much(report: dict[str, Any], directory: Path) -> None:
    """Let one key make another server keep what it can; add the faults to the report."""
    with Served(settings_in(directory)) as served:
        report["faults"] += uvloop.run(faults_of_keeping(served))
        report["pauses"] += pauses_of_keeping(served)
        code = served.end()
    if code:
        report["faults"].append(f"keeping: the exit code is {code}")


if __name__ == "__main__":
    sys.exit(main())
