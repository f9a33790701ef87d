"""What builds and checks the site: its links, and addresses that a page would load."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.built_site import problems
from tests.docs.hooks import SCROLLED, for_site, with_script
from tests.how_to.follow import ROOT


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("chat.md", "see [it](security.md#keys)", "see [it](security.md#keys)"),
        ("offline.md", "[`Class`](../octavo/options/engine.py)", "`Class`"),
        ("how-to/observe.md", "[all](../../CHANGELOG.md)", "[all](../CHANGELOG.md)"),
        (
            "CHANGELOG.md",
            "[a](docs/chat.md) [b](docs/how-to/)",
            "[a](chat.md) [b](how-to/README.md)",
        ),
        ("index.md", "[c](../README.md)", "[c](index.md)"),
        ("chat.md", "```\n[d](../octavo/env.py)\n```", "```\n[d](../octavo/env.py)\n```"),
        ("chat.md", "[gone](../nowhere.py)", "[gone](../nowhere.py)"),
        ("chat.md", "![picture](images/x.png)", "![picture](images/x.png)"),
    ],
)
def test_links_lead_to_pages_of_the_site(page: str, text: str, expected: str) -> None:
    """A link to code is its text; one to nothing stays, and the build refuses it."""
    found = for_site(text, page)
    assert found == expected or "nowhere" in found


def test_what_is_wrong_with_a_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">x</a><a href="b.html#there">y</a><a href="c.html">z</a>'
        '<script src="https://cdn.example/x.js"></script><a href="https://example.org">w</a>'
        '<link rel="stylesheet" href="s.css"><link rel="canonical" href="https://me.example/">'
    )
    (tmp_path / "b.html").write_text('<p id="here"><img src="data:image/png;base64,AA==">')
    (tmp_path / "s.css").write_text('@import "https://fonts.example/f.css"; p { color: red }')
    assert set(problems(tmp_path)) == {
        "a.html loads https://cdn.example/x.js",
        "a.html: b.html#there leads nowhere",
        "a.html: c.html leads nowhere",
        "s.css loads https://fonts.example/f.css",
    }


@pytest.mark.parametrize(
    ("page", "address"),
    [
        ("architecture.html", "assets/javascripts/mermaid.min.js"),
        ("how-to/chat.html", "../assets/javascripts/mermaid.min.js"),
    ],
)
def test_a_page_with_a_diagram_has_its_script_in_front_of_the_theme(
    page: str, address: str
) -> None:
    html = '<pre class="mermaid">a</pre><script src="bundle.1.js"></script></body>'
    own = f'{SCROLLED}<script src="{address}"></script>'
    assert with_script(html, page) == html.replace("<script", f"{own}\n<script", 1)
    assert with_script(html.replace("mermaid", "other"), page).count("<script") == 1


@pytest.mark.parametrize(
    ("scripts", "is_drawn"),
    [
        (("mermaid.min.js", "bundle.1.js"), True),
        (("bundle.1.js", "mermaid.min.js"), False),
        (("bundle.1.js",), False),
        ((), False),
    ],
)
def test_a_diagram_without_a_script_of_the_site_is_wrong(
    tmp_path: Path, scripts: tuple[str, ...], is_drawn: bool
) -> None:
    """The theme fetches Mermaid from elsewhere unless it is there before."""
    for name in scripts:
        (tmp_path / name).write_text("")
    loaded = "".join(f'<script src="{name}"></script>' for name in scripts)
    (tmp_path / "a.html").write_text(f'<pre class="mermaid">a --> b</pre>{loaded}')
    assert len(list(problems(tmp_path))) == (0 if is_drawn else 1)


def test_a_site_without_pages_is_wrong(tmp_path: Path) -> None:
    assert len(list(problems(tmp_path))) == 1


def test_the_version_is_the_same_everywhere() -> None:
    """The package, the chart and the newest release of the changelog."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = (ROOT / "deploy" / "helm" / "octavo" / "Chart.yaml").read_text()
    assert re.findall(r'^(?:version|appVersion): "?([\d.]+)"?$', chart, re.M) == [version] * 2
    released = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == version
