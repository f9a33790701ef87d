"""docs/comparison.md and its data, made from the measured tables.

`python -m tests.docs.comparison --write` writes both. The rows with peers and targets are those of
docs/performance.md, where `benchmarks/compare.py --write-docs` puts them; docs/data/others.json has
figures of other pages, each with its command.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from typing import NamedTuple

from tests.docs.pages import DOCS

PAGE = DOCS / "comparison.md"
DATA = DOCS / "data" / "comparison.csv"
OTHERS = DOCS / "data" / "others.json"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
COMMAND = "python benchmarks/compare.py"
NAMES = {"family 25, model 17": "Zen 4", "family 26, model 2": "Zen 5"}
# Comparisons that the page shows for each processor; the file has all.
SHOWN = (
    ("decode, 1 stream", "gguf"),
    ("decode, 8 streams", "bf16"),
    ("prefill 2048", "bf16"),
    ("64 requests, 128 in, 128 out", "bf16"),
    ("32 requests, 1024 of 1056 shared", "bf16"),
    ("HTTP, 8 streams", "serve gguf"),
    ("HTTP, 32 streams", "serve bf16"),
    ("process start to first token", "gguf"),
)


class Row(NamedTuple):
    """One comparison with a peer and the project's own target."""

    processor: str
    date: str
    commit: str
    case: str
    octavo: str
    figure: str
    beside: str
    peer_figure: str
    ratio: str
    target: str
    verdict: str


def rows() -> list[Row]:
    """Return the comparisons of docs/performance.md that were measured."""
    text = (DOCS / "performance.md").read_text("utf-8")
    measured = text.partition("<!-- compare.py writes from here -->")[2]
    measured = measured.partition("<!-- to here -->")[0]
    found = []
    for section in measured.split("\n### ")[1:]:
        processor = section.partition("\n")[0]
        measured_at = re.search(r"; (\d{4}-\d\d-\d\d), commit (\w+):", section)
        assert measured_at is not None, processor
        date, commit = measured_at.groups()
        for line in section.splitlines():
            cells = [cell.strip().strip("*") for cell in line.strip("|").split("|")]
            if len(cells) == 9 and cells[-1].lstrip() in ("met", "missed"):
                case, octavo, figure, beside, other, ratio, target, _, verdict = cells
                named = (processor, date, commit, case, octavo, figure)
                found.append(Row(*named, beside, other, ratio, target, verdict))
    return found


def others() -> list[dict[str, str]]:
    """Return the figures of other pages."""
    found: list[dict[str, str]] = json.loads(OTHERS.read_text("utf-8"))
    return found


def data() -> str:
    """Return the file of all comparisons."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow((*Row._fields, "command"))
    writer.writerows((*row, COMMAND) for row in rows())
    return output.getvalue()


def figures() -> str:
    """Return the tables of the page."""
    found = rows()
    parts = []
    for processor in dict.fromkeys(row.processor for row in found):
        own = [row for row in found if row.processor == processor]
        missed = sum(row.verdict == "missed" for row in own)
        parts.append(
            f"### {processor}\n\n{_name(processor)}, {own[0].date}, commit {own[0].commit}: "
            f"{len(own)} comparisons with a target, {missed} of them missed.\n\n"
            "| case | Octavo | | beside | | ratio | target | |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        )
        parts += [_line(row) for row in own if (row.case, row.octavo) in SHOWN]
        parts.append("\nMissed on this processor:\n\n")
        parts += [
            f"- {row.case}, {row.octavo}: {row.figure}"
            + ("" if row.beside == "–" else f" beside {row.beside} with {row.peer_figure}")
            + f"; target {row.target}\n"
            for row in own
            if row.verdict == "missed"
        ]
        parts.append("\n")
    parts.append(
        "### Other figures\n\n| what | figure | beside | target | processor | command | page |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
    )
    for each in others():
        target = each["target"].replace("missed", "**missed**")
        parts.append(
            f"| {each['what']} | {each['figure']} | {each['beside']} | {target} "
            f"| {each['processor']} | `{each['command']}` | [{each['page']}]({each['page']}) |\n"
        )
    return "".join(parts)


def _name(processor: str) -> str:
    return next(name for part, name in NAMES.items() if part in processor)


def _line(row: Row) -> str:
    verdict = "**missed**" if row.verdict == "missed" else row.verdict
    cells = (row.case, row.octavo, row.figure, row.beside, row.peer_figure, row.ratio, row.target)
    return f"| {' | '.join((*cells, verdict))} |\n"


def page() -> str:
    """Return the page with its tables."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{figures()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.docs.comparison --write")
    DATA.write_text(data(), "utf-8")
    PAGE.write_text(page(), "utf-8")
