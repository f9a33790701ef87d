"""The architecture page describes the code as it is, and its check notices differences."""

from pathlib import PurePosixPath

import pytest

from tests.tidy.architecture import (
    PAGE,
    demanded,
    diagram,
    duties,
    fill,
    import_arrows,
    import_graph,
    reduced,
)
from tests.tidy.size_rules import first_sentence
from tests.tidy.source import ROOT, Source


def test_the_page_is_true() -> None:
    """The page has every package, core module, arrow and duty of the code, and no other."""
    page = PAGE.read_text("utf-8")
    assert page == fill(page, demanded()), "run: python -m tests.tidy.architecture --write"


def test_every_file_is_seen() -> None:
    """A directory without __init__.py would be outside the graph, and so outside every contract."""
    files = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "octavo").rglob("*.py")}
    modules = {".".join(file.parts).removesuffix(".__init__") for file in files}
    assert modules == import_graph().modules
    inside = [module.split(".") for module in modules if ".core." in module]
    core = {parts[2] for parts in inside}
    assert set(import_arrows("octavo.core")) == core


def test_arrows_that_others_imply_are_not_drawn() -> None:
    """engine → plan follows from engine → scheduler → plan."""
    arrows = {"engine": ["plan", "scheduler"], "scheduler": ["plan"], "plan": []}
    assert reduced(arrows) == {"engine": ["scheduler"], "scheduler": ["plan"], "plan": []}


def test_a_circle_is_refused() -> None:
    """Two modules that import each other are one module in two files."""
    with pytest.raises(ValueError, match="circle: a → b → a"):
        reduced({"a": ["b"], "b": ["a"]})


def test_the_drawing() -> None:
    """The drawing has arrows, nodes without arrows, and the core as a box."""
    packages = {"core": [], "frontend": ["core"], "env": []}
    core = {"plan": [], "scheduler": ["plan"], "check": []}
    assert diagram(packages, core).split("\n") == [
        "```mermaid",
        "flowchart TD",
        "    frontend --> core",
        "    env",
        "    subgraph core",
        "        core.scheduler --> core.plan",
        "        core.check",
        "    end",
        "```",
        "",
    ]


def test_a_duty_is_the_first_sentence() -> None:
    """Line breaks vanish, and what follows the first stop stays in the file."""
    source = Source(
        PurePosixPath("plan.py"), '"""Plans what a step does, e.g\\nin 1.5 ways. Not this."""'
    )
    assert first_sentence(source) == "Plans what a step does, e.g in 1.5 ways."
    assert duties([("plan", source)]).endswith(
        "| `plan` | Plans what a step does, e.g in 1.5 ways. |\n"
    )


def test_a_false_page_is_noticed() -> None:
    """Each block is compared, and a page that lost its markers cannot pass."""
    page = "".join(f"<!-- begin {name} -->\nfalse\n<!-- end {name} -->\n" for name in demanded())
    for name, text in demanded().items():
        assert fill(page, {name: text}) != page
    with pytest.raises(ValueError, match="one block"):
        fill("no markers", {"diagram": "text"})
