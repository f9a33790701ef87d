"""The report: each row's ratio and whether its target is met, as Markdown tables."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES
from benchmarks.peers.engines import Metrics
from benchmarks.peers.rows import BF16, GGUF, ROWS, TIER_CASES, TIER_MUST, Row, forced

BEGIN, END = "<!-- compare.py writes from here -->", "<!-- to here -->"
UNITS = {
    "tok/s": "tok/s",
    "memory_mb": "MB",
    "seconds": "s",
    "one_us": "µs, one sequence",
    "further_us": "µs, each further one",
}
SPEED = "tok/s"


@dataclass
class Results:
    """Measurements by case, engine, one value for each round, None where one is missing."""

    about: dict[str, Any] = field(default_factory=dict)
    rounds: dict[tuple[str, str], list[Metrics | None]] = field(default_factory=dict)

    def note(self, case: str, engine: str, index: int, metrics: Metrics) -> None:
        """Record one measurement of a round."""
        rounds = self.rounds.setdefault((case, engine), [])
        rounds.extend([None] * (index + 1 - len(rounds)))
        rounds[index] = metrics

    def values(self, case: str, engine: str, metric: str = SPEED) -> dict[int, float]:
        """Return the values by round."""
        rounds = self.rounds.get((case, engine), [])
        return {index: each[metric] for index, each in enumerate(rounds) if each and metric in each}

    def add(self, other: Results) -> None:
        """Add the rounds of another run on this machine, behind those of the same cases."""
        if other.about["machine"] != self.about["machine"]:
            raise SystemExit("the runs are of two machines, or settings: write one at a time")
        first: dict[str, int] = {}
        for (case, _), rounds in self.rounds.items():
            first[case] = max(first.get(case, 0), len(rounds))
        for (case, engine), rounds in other.rounds.items():
            for index, metrics in enumerate(rounds):
                if metrics is not None:
                    self.note(case, engine, first.get(case, 0) + index, metrics)
        self.about["failures"] += other.about["failures"]
        self.about["versions"].update(other.about["versions"])
        if other.about["commit"] not in self.about["commit"]:
            self.about["commit"] += f", {other.about['commit']}"
        self.about["date"] = max(self.about["date"], other.about["date"])
        self.about["runs"] = min(self.about["runs"], other.about["runs"])
        self.about["quick"] = self.about["quick"] or other.about["quick"]

    def write(self, path: Path) -> None:
        """Write the file atomically, so that an interrupted run leaves the last complete one."""
        figures = [
            {"case": case, "engine": engine, "rounds": [each and _rounded(each) for each in rounds]}
            for (case, engine), rounds in self.rounds.items()
        ]
        beside = path.with_suffix(".new")
        text = json.dumps({**self.about, "figures": figures}, indent=1, ensure_ascii=False)
        beside.write_text(re.sub(r"\n {4,}| *\n {3}(?=[\]}])", " ", text) + "\n")
        beside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read the file that `write` wrote."""
        about = json.loads(path.read_text())
        figures = about.pop("figures")
        return cls(about, {(each["case"], each["engine"]): each["rounds"] for each in figures})


def _rounded(metrics: Metrics) -> Metrics:
    return {name: float(f"{value:.5g}") for name, value in metrics.items()}


def tables(results: Results) -> str:
    """Return the tables of targets, of forced tiers, of latencies and of all figures."""
    made = (targets, tiers, latencies, everything)
    parts = [list(make(results)) for make in made]
    return "\n\n".join("\n".join(part) for part in parts if len(part) > 2)


def targets(results: Results) -> Iterator[str]:
    """Return a line for each row that was measured."""
    yield "| case | octavo | figure | beside | its figure | ratio | must | aim | |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in ROWS:
        ours = results.values(row.case, row.ours, row.metric)
        if not ours:
            continue
        peer = best_peer(results, row)
        theirs = results.values(row.case, peer, row.metric) if peer else {}
        ratios = by_round(ours, theirs)
        unit, times = UNITS[row.metric], "" if row.is_bound else "×"
        cells = [
            CASES[row.case].name,
            row.ours.removeprefix("octavo "),
            f"{_spread(list(ours.values()))} {unit}",
            peer or ("not measured: " + ", ".join(row.peers[:2]) if row.peers else "–"),
            _spread(list(theirs.values())) + bandwidth(results, row, peer) if theirs else "–",
            _spread(ratios, "{:.2f}") if ratios else "–",
            f"{'≤' if row.is_bound or row.is_most else '≥'} {row.must:g}{times}",
            f"{row.aim:g}{times}",
            verdict(row, list(ours.values()), ratios),
        ]
        yield f"| {' | '.join(cells)} |"


def by_round(ours: dict[int, float], theirs: dict[int, float]) -> list[float]:
    """Return the ratio of each round in which both were measured."""
    return [ours[index] / theirs[index] for index in ours if theirs.get(index)]


def bandwidth(results: Results, row: Row, peer: str | None) -> str:
    """Return gigabytes a second, for peers that report them."""
    values = results.values(row.case, peer or "", "GB/s").values()
    return f": {statistics.median(values):.1f} GB/s" if values else ""


def verdict(row: Row, ours: list[float], ratios: list[float]) -> str:
    """Return whether the target is met, by medians."""
    if row.is_bound:
        return "met" if statistics.median(ours) <= row.must else "**missed**"
    if not ratios:
        return "–"
    ratio = statistics.median(ratios)
    return "met" if (ratio <= row.must if row.is_most else ratio >= row.must) else "**missed**"


def best_peer(results: Results, row: Row) -> str | None:
    """Return the best peer by median, or None where none was measured."""
    found = {
        peer: statistics.median(values.values())
        for peer in row.peers
        if (values := results.values(row.case, peer, row.metric))
    }
    choose: Callable[..., str] = min if row.is_bound or row.is_most else max
    return choose(found, key=found.__getitem__) if found else None


def tiers(results: Results) -> Iterator[str]:
    """Return what the engine chose for itself beside each tier alone."""
    yield "| case | octavo | the engine's choice | one tier alone | choice / best tier | must | |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for case in TIER_CASES:
        for engine in (GGUF, BF16):
            names = forced(engine)
            row = Row(case, engine, tuple(names), TIER_MUST, 1.0)
            ours, best = results.values(case, engine), best_peer(results, row)
            if not ours or best is None:
                continue
            alone = {tier: results.values(case, name) for name, tier in names.items()}
            ratios = by_round(ours, results.values(case, best))
            cells = [
                CASES[case].name,
                engine.removeprefix("octavo "),
                f"{_spread(list(ours.values()))} tok/s",
                ", ".join(
                    f"{tier} {statistics.median(values.values()):.4g}"
                    for tier, values in alone.items()
                    if values
                ),
                _spread(ratios, "{:.2f}") if ratios else "–",
                f"≥ {row.must:g}×",
                verdict(row, list(ours.values()), ratios),
            ]
            yield f"| {' | '.join(cells)} |"


def latencies(results: Results) -> Iterator[str]:
    """Return the latencies that clients saw, and the servers' memory."""
    yield (
        "| through HTTP | server | output tok/s | TTFT p50 / p99, ms | ITL p50 / p99, ms "
        "| tokens an event | memory, MB |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for case, engine in sorted(results.rounds, key=lambda each: list(CASES).index(each[0])):

        def median(metric: str, case: str = case, engine: str = engine) -> float:
            return statistics.median(results.values(case, engine, metric).values())

        if results.values(case, engine, "ttft_p50_ms"):
            yield (
                f"| {CASES[case].name} | {engine} | {median(SPEED):.0f} "
                f"| {median('ttft_p50_ms'):.0f} / {median('ttft_p99_ms'):.0f} "
                f"| {median('itl_p50_ms'):.1f} / {median('itl_p99_ms'):.1f} "
                f"| {median('tokens_an_event'):.2f} | {median('memory_mb'):.0f} |"
            )


def everything(results: Results) -> Iterator[str]:
    """Return medians of tokens a second: a row for each case, a column for each engine."""
    alone = forced(GGUF) | forced(BF16)  # they have a table of their own
    measured = [key for key in results.rounds if results.values(*key) and key[1] not in alone]
    engines = [engine for case, engine in measured if not CASES[case].streams]
    engines = list(dict.fromkeys(sorted(engines, key=lambda name: not name.startswith("octavo"))))
    yield f"| tok/s | {' | '.join(engines)} |"
    yield "| --- " * (len(engines) + 1) + "|"
    for case in CASES.values():
        if not case.streams and any(name == case.key for name, _ in measured):
            cells = [results.values(case.key, engine).values() for engine in engines]
            texts = [f"{statistics.median(cell):.0f}" if cell else "" for cell in cells]
            yield f"| {case.name} | {' | '.join(texts)} |"


def _spread(values: list[float], form: str = "{:.4g}") -> str:
    """Format the median, with smallest and largest where there are several values."""
    median = form.format(statistics.median(values))
    if len(values) == 1:
        return median
    return f"{median} ({form.format(min(values))}–{form.format(max(values))})"


def write_docs(results: Results, page: Path, directory: Path) -> Path:
    """Keep the figures in the file of their processor, and write all processors' tables."""
    text = page.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} lacks the marks {BEGIN} and {END}")
    machine = results.about["machine"]
    name = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    kept = directory / f"{name}-{machine['cores']}-cores.json"
    directory.mkdir(exist_ok=True)
    results.write(kept)
    parts = [section(Results.read(path), path.name) for path in sorted(directory.glob("*.json"))]
    page.write_text(f"{head}{begin}\n{''.join(parts)}{end}{tail}")
    return kept


def section(results: Results, file: str) -> str:
    """Return one processor's section of the page."""
    machine = results.about["machine"]
    versions = dict.fromkeys(results.about["versions"].values())
    lengths = [len(about) for about in results.rounds.values()]
    rounds = dict.fromkeys(map(str, (min(lengths), max(lengths))))
    about = (
        f"Rounds: {' to '.join(rounds)}, several where there are brackets; "
        f"{results.about['date']}, commit "
        f"{results.about['commit']}: {machine['processor']} "
        f"({', '.join(machine['instruction_sets'])}), {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, Python {machine['python']}, "
        f"{machine['threads']} threads each; beside {'; '.join(filter(None, versions))}. "
        f"All figures: benchmarks/results/{file}."
    )
    title = f"### {machine['processor']}, {machine['cores']} cores"
    return f"{title}\n\n{about}\n\n{tables(results)}\n\n"
