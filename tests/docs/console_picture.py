"""The moving picture of the console: python -m tests.docs.console_picture --write.

It is drawn from docs/data/console-frames.json: frames of `/v1/live` that a server has sent under
load. `python -m tests.docs.console_picture --keep FILE` keeps those of `octavo top --json > FILE`.
Pure SVG: each shape has the values of all frames, and no script runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from tests.docs.pages import DOCS

FRAMES = DOCS / "data" / "console-frames.json"
PICTURE = DOCS / "images" / "console.svg"
WIDTH, HEIGHT = 840, 400
SECONDS_A_FRAME = 0.25
MOST_ROWS = 8
MOST_FRAMES = 64
CELLS_A_ROW = 30
_BAR = (120.0, 250.0)  # where the bars of requests begin, and their length
_STYLE = """
svg { --paper: #faf9f6; --ink: #1c1b19; --faint: #5f5b53; --line: #d9d5cb; --accent: #8a2b1d;
  --cached: #b7a47f; --prefill: #c0692f; --decode: #2c6e69; --rest: #e6e2d8; --kept: #d9ccb0; }
@media (prefers-color-scheme: dark) { svg { --paper: #141518; --ink: #e8e6e1; --faint: #a8a398;
  --line: #34353a; --accent: #f0a08f; --cached: #8b7c5c; --prefill: #d98a4e; --decode: #5fb0a9;
  --rest: #2c2d32; --kept: #4a4435; } }
text { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--faint); }
.name { font: 600 18px Palatino, Georgia, serif; fill: var(--ink); }
.head { font: 600 14px Palatino, Georgia, serif; fill: var(--ink); }
.big { font: 17px Georgia, serif; fill: var(--ink); }
.id { font: 12px ui-monospace, Menlo, "DejaVu Sans Mono", monospace; fill: var(--accent); }
.cached { fill: var(--cached); } .prefill { fill: var(--prefill); } .decode { fill: var(--decode); }
.rest { fill: var(--rest); } .kept { fill: var(--kept); }
"""


class Drawing:
    """Shapes whose attributes change from frame to frame."""

    def __init__(self, num_frames: int) -> None:
        self.num_frames = num_frames
        self.parts: list[str] = []

    def text(self, x: float, y: float, kind: str, words: str, anchor: str = "start") -> None:
        """Add words that stay."""
        where = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self.parts.append(f'<text class="{kind}" {where}>{escape(words)}</text>')

    def changing_text(
        self, x: float, y: float, kind: str, words: Sequence[str], **how: str
    ) -> None:
        """Add words that change: one text for each wording, shown in its frames."""
        for wording in dict.fromkeys(words):
            shown = ["inline" if each == wording else "none" for each in words]
            anchor = how.get("anchor", "start")
            self.parts.append(
                f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}" '
                f'display="{shown[0]}">{escape(wording)}{self._values("display", shown)}</text>'
            )

    def bar(self, kind: str, x: Sequence[float], y: float, width: Sequence[float]) -> None:
        """Add a bar whose place and length change."""
        inner = self._values("x", [f"{each:.0f}" for each in x])
        inner += self._values("width", [f"{each:.0f}" for each in width])
        self.parts.append(
            f'<rect class="{kind}" x="{x[0]:.0f}" y="{y:g}" width="{width[0]:.0f}" height="11">'
            f"{inner}</rect>"
        )

    def cell(self, x: float, y: float, fills: Sequence[str]) -> None:
        """Add a square of the map whose class, and so its colour, changes."""
        inner = self._values("class", fills)
        self.parts.append(
            f'<rect class="{fills[0]}" x="{x:g}" y="{y:g}" width="9" height="9">{inner}</rect>'
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """Add a line that grows by a point a frame, uncovered by a moving edge."""
        drawn = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        number = len(self.parts)
        edges = self._values("width", [f"{x - points[0][0]:.0f}" for x, _ in points])
        self.parts.append(
            f'<clipPath id="c{number}"><rect x="{points[0][0]:.0f}" y="0" height="{HEIGHT}" '
            f'width="0">{edges}</rect></clipPath><polyline clip-path="url(#c{number})" fill="none" '
            f'stroke="var(--{colour})" stroke-width="1.5" points="{drawn}"/>'
        )

    def _values(self, attribute: str, values: Sequence[str]) -> str:
        """Return an animation that jumps from value to value; nothing if there is one alone."""
        if len(set(values)) == 1:
            return ""
        kept = [
            index for index, each in enumerate(values) if not index or each != values[index - 1]
        ]
        times = ";".join(f"{index / self.num_frames:.4g}" for index in kept)
        return (
            f'<animate attributeName="{attribute}" calcMode="discrete" repeatCount="indefinite" '
            f'dur="{self.num_frames * SECONDS_A_FRAME:g}s" keyTimes="{times}" '
            f'values="{";".join(values[index] for index in kept)}"/>'
        )


def picture(frames: list[dict[str, Any]]) -> str:
    """Return the picture of frames."""
    drawing = Drawing(len(frames))
    _figures(drawing, frames)
    _requests(drawing, frames)
    _map(drawing, frames)
    _plot(drawing, frames)
    title = "The console of a server under load: figures, requests as bars, the KV memory as a map"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}"><title>{title}</title><style>{_STYLE}</style>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" style="fill: var(--paper)"/>'
        + "".join(drawing.parts)
        + "</svg>\n"
    )


def _figures(drawing: Drawing, frames: list[dict[str, Any]]) -> None:
    drawing.text(20, 30, "name", "Octavo")
    drawing.text(95, 30, "", f"{frames[0]['model']}, live")
    drawing.parts.append(f'<path d="M0 44h{WIDTH}" style="stroke: var(--line)"/>')
    shown: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
        ("Running", lambda frame: f"{frame['running']} of {frame['slots']}"),
        ("Waiting", lambda frame: str(frame["waiting"])),
        ("Prompt tokens cached", lambda frame: f"{frame['cached']} of {frame['prompts']}"),
        ("KV memory in use", lambda frame: f"{frame['used']} %"),
    )
    for x, (head, value) in zip((20, 110, 200, 370), shown, strict=True):
        drawing.text(x, 66, "", head)
        drawing.changing_text(x, 88, "big", [value(frame) for frame in frames])


def _requests(drawing: Drawing, frames: list[dict[str, Any]]) -> None:
    drawing.text(20, 124, "head", "Requests")
    for x, kind in ((120, "cached"), (195, "prefill"), (265, "decode"), (335, "rest")):
        drawing.parts.append(f'<rect class="{kind}" x="{x}" y="114" width="11" height="11"/>')
        drawing.text(x + 16, 124, "", "to come" if kind == "rest" else kind)
    start, length = _BAR
    for row in range(MOST_ROWS):
        y = 142 + 26 * row
        requests = [
            frame["requests"][row] if row < len(frame["requests"]) else None for frame in frames
        ]
        if not any(requests):
            continue
        drawing.changing_text(20, y + 10, "id", [each["id"] if each else "" for each in requests])
        drawing.bar("rest", [start] * len(frames), y, [length if each else 0 for each in requests])
        ends = [[start + length * share for share in _shares(each)] for each in requests]
        for index, kind in enumerate(("cached", "prefill", "decode")):
            begins = [each[index - 1] if index else start for each in ends]
            widths = [each[index] - begin for each, begin in zip(ends, begins, strict=True)]
            drawing.bar(kind, begins, y, widths)
        states = [f"{each['state']} {each['known']}" if each else "" for each in requests]
        drawing.changing_text(480, y + 10, "", states, anchor="end")


def _shares(request: dict[str, Any] | None) -> tuple[float, float, float]:
    """Return the ends of the cached, the computed and the generated part of a bar."""
    if request is None:
        return 0.0, 0.0, 0.0
    most = max(request["most"], 1)
    computed = min(request["computed"], request["prompt"])
    generated = max(request["known"], computed) if computed == request["prompt"] else computed
    cached = min(request["cached"], computed)
    return cached / most, computed / most, generated / most


def _map(drawing: Drawing, frames: list[dict[str, Any]]) -> None:
    drawing.text(510, 124, "head", "KV memory")
    for index in range(len(frames[0]["map"])):
        fills = [{"u": "decode", "k": "kept", "f": "rest"}[frame["map"][index]] for frame in frames]
        x, y = 510 + 10.5 * (index % CELLS_A_ROW), 136 + 11 * (index // CELLS_A_ROW)
        drawing.cell(x, y, fills)


def _plot(drawing: Drawing, frames: list[dict[str, Any]]) -> None:
    drawing.text(510, 240, "head", "Generated tokens, all requests")
    totals = [frame["generated"] - frames[0]["generated"] for frame in frames]
    highest = max(*totals, 1)
    step = 310 / max(len(frames) - 1, 1)
    points = [(510 + step * i, 340 - 85 * total / highest) for i, total in enumerate(totals)]
    drawing.parts.append('<path d="M510 341h310" style="stroke: var(--line)"/>')
    drawing.line(points, "decode")
    drawing.changing_text(820, 358, "", [str(total) for total in totals], anchor="end")
    drawing.text(
        20, 384, "", "Frames of a real server with four slots, shown faster than they came."
    )


def kept(frame: dict[str, Any]) -> dict[str, Any]:
    """Return what the picture shows of a frame of `/v1/live`."""
    (model,) = frame["models"]
    (engine,) = model["engines"]
    cells = zip(engine["map"]["used"], engine["map"]["kept"], strict=True)
    return {
        "model": model["name"],
        "running": engine["running"],
        "waiting": engine["waiting"] + engine["held"] + model["queue_requests"],
        "slots": engine["slots"],
        "cached": engine["cached_tokens"],
        "prompts": engine["prefill_tokens"] + engine["cached_tokens"],
        "used": round(100 * (1 - engine["free_blocks"] / max(engine["blocks"], 1))),
        "generated": model["generated_tokens"],
        "map": "".join("u" if used else "k" if kept else "f" for used, kept in cells),
        "requests": [
            {
                "id": each["id"],
                "state": each["state"],
                "prompt": each["prompt_tokens"],
                "cached": each["cached_tokens"],
                "computed": each["computed_tokens"],
                "known": each["known_tokens"],
                "most": each["most_tokens"] or each["known_tokens"],
            }
            for each in frame["requests"][:MOST_ROWS]
        ],
    }


def chosen(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return frames that differ from the one before, not more than a picture has, evenly taken."""
    differ = [each for index, each in enumerate(frames) if not index or each != frames[index - 1]]
    step = -(-len(differ) // MOST_FRAMES)
    return differ[::step]


def main() -> None:
    """Keep frames, or draw the picture of those that are kept."""
    if sys.argv[1] == "--keep":
        with open(sys.argv[2], encoding="utf-8") as lines:
            frames = chosen([kept(json.loads(line)) for line in lines])
        FRAMES.write_text("[\n" + ",\n".join(map(json.dumps, frames)) + "\n]\n", "utf-8")
    PICTURE.write_text(picture(json.loads(FRAMES.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
