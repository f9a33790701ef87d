"""A panel of a picture: lines over two axes, what is marked on them, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from octavo.bench.plot.axis import Axis, axis_of, number

WIDTH = 760
HEIGHT = 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 34, 44
_DOT = 3.6


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, with its name; its kind is its colour and the form of its dots.

    A label is written beside the last of its dots, instead of a name above the panel.
    """

    name: str
    points: Sequence[tuple[float, float]]
    kind: str  # "a" or "b"
    has_dots: bool = True
    label: str = ""


class Mark(NamedTuple):
    """A value of an axis that a dashed line shows."""

    axis: str  # "x" or "y"
    value: float
    text: str
    kind: str = "mark"
    is_below: bool = False  # the text, beside a line across


@dataclass(frozen=True, slots=True)
class Panel:
    """The lines, the marks and the names of one panel."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    x_from_zero: bool = False
    y_most: float | None = None  # the top of the axis, if it is not that of the values
    bad_from: float | None = None  # on the x axis; what is behind it is shaded


def drawn(panel: Panel, top: float) -> Iterator[str]:
    """Yield the SVG of a panel whose upper edge is there."""
    right, upper, lower = WIDTH - _RIGHT, top + _TOP, top + HEIGHT - _BOTTOM
    points = [point for line in panel.lines for point in line.points]
    xs = [x for x, _ in points] + [each.value for each in panel.marks if each.axis == "x"]
    ys = [y for _, y in points] + [each.value for each in panel.marks if each.axis == "y"]
    x = axis_of(xs, _LEFT, right, from_zero=panel.x_from_zero)
    if panel.y_most is None:
        y = axis_of(ys, lower, upper, from_zero=True)
    else:
        y = Axis(0.0, panel.y_most, lower, upper, is_log=False)
    if panel.bad_from is not None and panel.bad_from < x.most:
        left = x.at(panel.bad_from)
        yield (
            f'<rect class="bad" x="{left:.1f}" y="{upper:.1f}" width="{right - left:.1f}" '
            f'height="{lower - upper:.1f}"/>'
        )
    yield _text(_LEFT, top + 16, panel.title, "head")
    yield from _legend(panel.lines, right, top + 16)
    yield from _grid(panel, x, y)
    for mark in panel.marks:
        yield from _mark(mark, x, y)
    for line in panel.lines:
        yield from _line(line, panel, x, y)


def _grid(panel: Panel, x: Axis, y: Axis) -> Iterator[str]:
    """Yield both axes, their numbers, and their names with units."""
    for value in y.ticks():
        at = y.at(value)
        yield f'<path class="grid" d="M{x.first:.1f} {at:.1f}H{x.last:.1f}"/>'
        yield _text(x.first - 8, at + 4, number(value), "soft", "end")
    for value in x.ticks():
        at = x.at(value)
        yield f'<path class="axis" d="M{at:.1f} {y.first:.1f}v5"/>'
        yield _text(at, y.first + 18, number(value), "soft", "middle")
    yield f'<path class="axis" d="M{x.first:.1f} {y.first:.1f}H{x.last:.1f}"/>'
    yield _text((x.first + x.last) / 2, y.first + 36, panel.x_name, "soft", "middle")
    middle = (y.first + y.last) / 2
    yield (
        f'<text class="soft" text-anchor="middle" transform="translate(20 {middle:.1f}) '
        f'rotate(-90)">{escape(panel.y_name)}</text>'
    )


def _mark(mark: Mark, x: Axis, y: Axis) -> Iterator[str]:
    """Yield a dashed line, with its text on the side that has room for it."""
    if mark.axis == "x":
        at = x.at(mark.value)
        yield f'<path class="{mark.kind} dashed" d="M{at:.1f} {y.first:.1f}V{y.last:.1f}"/>'
        is_left = at > (x.first + x.last) / 2
        place = (at - 6, "end") if is_left else (at + 6, "start")
        yield _text(place[0], y.last + 11, mark.text, f"{mark.kind}-text", place[1])
        return
    at = y.at(mark.value)
    yield f'<path class="{mark.kind} dashed" d="M{x.first:.1f} {at:.1f}H{x.last:.1f}"/>'
    is_below = mark.is_below or at - 16 < y.last
    yield _text(x.first + 6, at + 14 if is_below else at - 5, mark.text, f"{mark.kind}-text")


def _line(line: Line, panel: Panel, x: Axis, y: Axis) -> Iterator[str]:
    places = [(x.at(a), y.at(b)) for a, b in line.points]
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    if len(places) > 1:
        yield f'<path class="{line.kind} line" d="M{path}"/>'
    if not line.has_dots:
        return
    if line.label:
        yield _beside(line, places[-1], x)
    for (a, b), (at, value) in zip(line.points, places, strict=True):
        words = f"{line.name}: {number(b)} {panel.y_name} at {number(a)} {panel.x_name}"
        yield f"<g>{_dot(line.kind, at, value)}<title>{escape(words)}</title></g>"


def _beside(line: Line, place: tuple[float, float], x: Axis) -> str:
    """Return a label below a dot on its right, or above it on its left, off a rising line."""
    at, value = place
    if at > x.first + 0.8 * (x.last - x.first):
        return _text(at - 9, value - 4, line.label, f"{line.kind}-text", "end")
    return _text(at + 9, value + 12, line.label, f"{line.kind}-text")


def _dot(kind: str, at: float, value: float) -> str:
    """Return a circle or a square, so that kinds differ without colours too."""
    if kind == "a":
        return f'<circle class="a dot" cx="{at:.1f}" cy="{value:.1f}" r="{_DOT}"/>'
    return (
        f'<rect class="{kind} dot" x="{at - _DOT:.1f}" y="{value - _DOT:.1f}" '
        f'width="{2 * _DOT:.1f}" height="{2 * _DOT:.1f}"/>'
    )


def _legend(lines: Sequence[Line], right: float, at: float) -> Iterator[str]:
    """Yield the names of the lines, right-aligned in one row."""
    named = [each for each in lines if not each.label]
    if len(named) < 2:
        return
    for line in reversed(named):
        yield _text(right, at, line.name, "soft", "end")
        right -= 7.2 * len(line.name) + 12
        yield f'<path class="{line.kind} line" d="M{right - 16:.1f} {at - 4:.1f}h20"/>'
        yield _dot(line.kind, right - 6, at - 4)
        right -= 34


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'
