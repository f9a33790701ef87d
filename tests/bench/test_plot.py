"""Pictures of measurements: whole without anything else, with axes, units and the knee."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from octavo.bench.plot.axis import axis_of, number
from octavo.bench.plot.measured import run_panels, sweep_panels
from octavo.bench.plot.panel import HEIGHT, WIDTH, Line, Mark, Panel
from octavo.bench.plot.picture import as_page, as_svg, write
from octavo.bench.served.answer import Answer

NS = "{http://www.w3.org/2000/svg}"


def run_at(rate: float, share: float) -> dict[str, Any]:
    times = {f"p{at}_{name}_ms": rate * at for name in ("ttft", "tpot", "e2el") for at in (50, 99)}
    return {"request_rate": rate, "goodput_share": share, **times}


RUNS = [run_at(4.0, 0.2), run_at(1.0, 1.0), run_at(2.0, 0.95)]


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{NS}text")]


def test_the_panels_of_a_sweep() -> None:
    panels = sweep_panels(RUNS, {"ttft": 250.0, "e2el": 900.0}, 0.9, 2.0, 4.0)
    assert len(panels) == 4  # TTFT, TPOT, the further goal, the share
    assert panels[0].lines[0].points == [(1.0, 50.0), (2.0, 100.0), (4.0, 200.0)]
    assert [each.name for each in panels[0].lines] == ["p50", "p99"]
    assert panels[-1].lines[0].points == [(1.0, 100.0), (2.0, 95.0), (4.0, 20.0)]
    assert {panel.x_name for panel in panels} == {"requests/s"}
    assert [panel.y_name for panel in panels] == ["ms", "ms", "ms", "%"]
    assert {panel.bad_from for panel in panels} == {2.0}
    found = texts(as_svg("model", "about", panels))
    assert "knee: 2 requests/s" in found
    assert "goal: 250 ms" in found
    assert {"p50", "p99", "requests/s", "ms", "%"} <= set(found)


def test_a_sweep_without_a_knee_or_times() -> None:
    panels = sweep_panels(
        [{"request_rate": 1.0, "goodput_share": 0.0}], {"ttft": 1.0}, 0.9, None, 1
    )
    (share,) = panels
    assert share.marks[0].axis == "y"
    assert as_svg("model", "about", panels)


def test_the_panels_of_a_run() -> None:
    answers = [Answer(0.0, each / 100, 1.0 + each / 100, num_tokens=3) for each in range(1, 101)]
    panels = run_panels([*answers, Answer(0.0, ended=1.0, error="x")])
    assert len(panels) == 3  # there are no gaps
    curve, *dots = panels[0].lines
    assert [each.label for each in dots] == ["p50: 505 ms", "p90: 901 ms", "p99: 990 ms"]
    xs, shares = zip(*curve.points, strict=True)
    assert list(xs) == sorted(xs)
    assert (shares[0], shares[-1]) == (0.0, 100.0)
    assert len(curve.points) < 300
    assert run_panels([]) == []
    assert as_svg("model", "about", [])


PANEL = Panel("t", "x", "y", [Line("a", [(1, 2), (3, 4)], "a")], [Mark("x", 2, "m")])


def test_a_picture_is_whole_and_for_both_kinds_of_screens() -> None:
    for text in (as_svg("t", "about", [PANEL]), as_page("t", "about", [PANEL])):
        assert "prefers-color-scheme:dark" in text
        assert not re.search(r"(src|href)=|url\(|@import|<script", text)
        assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


def test_names_cannot_be_markup() -> None:
    """A server gives its model's name."""
    name = '</text><script>alert("x")</script>&'
    panel = Panel(name, name, name, [Line(name, [(1, 2)], "a", label=name)], [Mark("x", 1, name)])
    for text in (as_svg(name, name, [panel]), as_page(name, name, [panel])):
        assert "<script" not in text
    assert name in texts(as_svg(name, name, [panel]))


def test_everything_is_inside_the_picture() -> None:
    panels = sweep_panels(RUNS, {"ttft": 1e9}, 0.9, 2.0, 4.0)
    svg = ElementTree.fromstring(as_svg("model", "about", panels))
    height = float(svg.get("height", "0"))
    assert height == 64 + HEIGHT * len(panels)
    places = [each for each in svg.iter() if each.get("x") or each.get("cx")]
    assert places
    for each in places:
        x, y = (float(each.get(f"c{axis}") or each.get(axis) or 0) for axis in "xy")
        assert 0 <= x <= WIDTH
        assert 0 <= y <= height


@pytest.mark.parametrize(
    "values",
    [[], [0.0], [5.0], [5.0, 5.0], [0.0, 7.3], [0.001, 7.3], [1.0, 64.0], [3e-9, 4e9], [math.nan]],
)
def test_axes_have_all_values_and_some_numbers(values: list[float]) -> None:
    for from_zero in (False, True):
        axis = axis_of(values, 100.0, 700.0, from_zero=from_zero)
        assert 2 <= len(axis.ticks()) <= 30
        assert axis.ticks() == sorted(axis.ticks())
        for each in values:
            if math.isfinite(each) and each > 0:
                assert axis.least <= each <= axis.most
                assert 100.0 <= axis.at(each) <= 700.0


def test_numbers() -> None:
    assert [number(each) for each in (12345.6, 999.4, 0.1 + 0.2, 2.0)] == [
        "12,346",
        "999",
        "0.3",
        "2",
    ]


@pytest.mark.parametrize(("name", "first"), [("a.svg", "<svg"), ("a.html", "<!doctype")])
def test_the_files_name_says_its_form(name: str, first: str, tmp_path: Path) -> None:
    write(tmp_path / name, "t", "about", [PANEL])
    assert (tmp_path / name).read_text().startswith(first)
