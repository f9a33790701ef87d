"""Every statement of the README has a test: here, or the one that is named for it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from octavo.backends.cuda.kind import UNTRIED
from octavo.loader.pinned import ALIASES
from octavo.loader.source import SOURCES
from octavo.models.registry import ENCODERS, FAMILIES, GENERATING
from octavo.options.server import ServerSettings
from octavo.server.routes import ROUTES
from tests.docs import comparison
from tests.docs.console_picture import FRAMES, MOST_FRAMES, PICTURE, picture
from tests.docs.pages import DOCS
from tests.how_to.follow import ROOT

README = ROOT / "README.md"
TEXT = README.read_text("utf-8")
_DEATHS = "tests/client/test_deaths.py::"
_HERE = "tests/docs/test_readme.py::"
_FIGURES = f"{_HERE}test_the_figures_are_measured_ones"
# A phrase of each paragraph, row and item, and the tests of what it says.
STATEMENTS = {
    "OpenAI-compatible server": (f"{_HERE}test_the_dialects_are_served",),
    "paged KV cache": (
        "tests/backends/native/test_together.py",
        "tests/sim/test_golden.py::test_a_golden_trace_is_reproduced",
    ),
    "a request's tokens never depend on other requests": (
        "tests/runner/test_exactness.py",
        "tests/backends/native/test_worlds.py",
        "tests/runner/speculate",
    ),
    "828 tokens a second": (_FIGURES,),
    "382 MB of memory": (_FIGURES,),
    "0.36 s from the start": (_FIGURES,),
    "Python 3.11 or newer": (f"{_HERE}test_the_requirements_are_those_of_the_project",),
    "It installs the product alone": (
        "tests/test_make_serve.py::test_the_server_needs_no_pytorch_and_no_development_tools",
    ),
    "The first request": ("tests/docs/every_page.py", "tests/console/every_view.py"),
    "30 architectures that write and 8 kinds of encoders": (
        f"{_HERE}test_the_architectures_are_counted",
        "tests/models/test_stored_formats.py",
        "tests/models/test_gguf.py",
    ),
    "The APIs of OpenAI": (f"{_HERE}test_the_dialects_are_served", "tests/server/grpc"),
    "[shapes]": ("tests/grammar", "tests/server/adapters", "tests/runner/speculate"),
    "a request goes on when its engine dies": (
        f"{_DEATHS}test_ten_kills_under_fifty_streams_lose_no_token_and_repeat_none",
        "tests/docs/every_page.py",
    ),
    "Why a request was slow": ("tests/docs/every_page.py", "tests/deploy"),
    "experimental: not yet run on a GPU": (f"{_HERE}test_what_is_not_there_is_said",),
}


def paragraphs() -> list[str]:
    """Return what states something: no headings, blocks, pictures or the list of links."""
    text = TEXT.partition("## Read on")[0]
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = [each.strip() for each in re.split(r"\n(?=- |\| )|\n\n", text)]
    skipped = ("#", "![", "| ---", "| figure", "<!--")
    return [each for each in found if each and not each.startswith(skipped)]


def test_the_readme_is_of_one_screen() -> None:
    assert TEXT.count("\n") <= 80
    assert all(len(line) <= 160 for line in TEXT.splitlines() if not line.startswith("|"))


def test_each_statement_has_a_test() -> None:
    """Each paragraph, row and item has a phrase here, and the tests that are named exist."""
    stated = paragraphs()
    assert [phrase for phrase in STATEMENTS if not any(phrase in each for each in stated)] == []
    assert [each for each in stated if not any(phrase in each for phrase in STATEMENTS)] == []
    for tests in STATEMENTS.values():
        for name in tests:
            path, _, function = name.partition("::")
            assert (ROOT / path).exists(), name
            if function:
                tree = ast.parse((ROOT / path).read_text("utf-8"))
                names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
                assert function in names, name


def served(server: str) -> list[str]:
    """Return the row of a server with 8 streams, of the newest run in docs/performance.md."""
    text = (DOCS / "performance.md").read_text("utf-8")
    newest = text.partition("### AMD EPYC (family 26, model 2)")[2].partition("<!-- to here -->")[0]
    (row,) = re.findall(rf"^\| HTTP, 8 streams \| {server} \|(.*)\|$", newest, re.MULTILINE)
    return [cell.strip() for cell in row.split("|")]


def test_the_figures_are_measured_ones() -> None:
    ours, vllm = map(served, ("octavo serve gguf", "vllm serve bf16"))
    forms = (served(f"llama-server {form}") for form in ("q4_1", "q8_0", "bf16"))
    llama = max(forms, key=lambda row: int(row[0]))  # its fastest
    for column, unit in ((0, "tokens a second"), (4, "MB of memory")):
        assert f"| {ours[column]} {unit}" in TEXT
        for name, row in (("vLLM", vllm), ("llama-server", llama)):
            value = f"{int(row[column]):,}"
            assert re.search(rf"{name}[^|;]*: {value}\b", TEXT), (name, value)
    (start,) = [
        row
        for row in comparison.rows()
        if "family 26" in row.processor and row.case.startswith("process") and row.octavo == "gguf"
    ]
    assert start.verdict == "missed"
    assert "is **missed**" in TEXT
    for figure in (start.figure, start.peer_figure):
        assert f"{float(figure.split()[0]):.2f} s" in TEXT


def test_the_comparison_is_that_of_the_measured_tables() -> None:
    hint = "run: python -m tests.docs.comparison --write"
    assert comparison.PAGE.read_text("utf-8") == comparison.page(), hint
    assert comparison.DATA.read_text("utf-8") == comparison.data(), hint
    assert len(comparison.rows()) > 50
    for each in comparison.others():
        assert each["figure"] in (DOCS / each["page"]).read_text("utf-8"), each["what"]


def test_the_architectures_are_counted() -> None:
    writing = [name for name in FAMILIES if name.endswith(GENERATING)]
    assert f"{len(writing)} architectures that write" in TEXT
    assert f"{len(ENCODERS)} kinds of encoders" in TEXT


def test_the_dialects_are_served() -> None:
    paths = {route.path for route in ROUTES}
    named = {
        "OpenAI": "/v1/chat/completions",
        "Anthropic": "/v1/messages",
        "Cohere": "/v2/chat",
        "Ollama": "/api/chat",
        "llama.cpp": "/completion",
        "TGI": "/generate",
    }
    assert set(named.values()) <= paths
    assert all(name in TEXT for name in named)


def test_the_requirements_are_those_of_the_project() -> None:
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()
    settings = ServerSettings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert "http://127.0.0.1:8000" in TEXT
    needs = (ROOT / ".ci" / "needs").read_text()
    for package in ("g++", "python$version-venv", "python$version-dev"):
        assert f'"{package}"' in needs
        assert package.replace("$version", "3") in TEXT


def test_the_small_model_has_the_size_that_is_said() -> None:
    found = SOURCES[0].find("smollm2")
    if found is None:
        pytest.skip("the model is not on this machine")
    megabytes = sum(path.stat().st_size for path in found.weights) / 1e6
    assert f"({round(megabytes)} MB)" in TEXT
    assert "smollm2" in ALIASES


def test_what_is_not_there_is_said() -> None:
    """The sentence about GPUs is the program's own."""
    assert f"**{UNTRIED}**" in TEXT
    assert "an engine of several machines" in (DOCS / "comparison.md").read_text("utf-8").lower()


def test_the_picture_is_drawn_from_the_frames(tmp_path: Path) -> None:
    """The picture is small, has no script and loads nothing."""
    drawn = PICTURE.read_text("utf-8")
    frames = json.loads(FRAMES.read_text("utf-8"))
    assert drawn == picture(frames), "run: python -m tests.docs.console_picture --write"
    assert len(frames) <= MOST_FRAMES
    assert len(drawn.encode()) <= 200_000
    root = ElementTree.fromstring(drawn)
    names = {each.tag.rpartition("}")[2] for each in root.iter()}
    assert names <= {
        "svg",
        "title",
        "style",
        "rect",
        "path",
        "text",
        "animate",
        "clipPath",
        "polyline",
    }
    assert not re.search(r"url\((?!#)|@import|href", drawn)
