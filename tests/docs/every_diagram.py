"""The diagrams of the built site in a real Chromium: drawn, by what the site itself has.

`make test-docs` runs this file, behind `make docs`; it is skipped where there is no Chromium.
"""

from __future__ import annotations

import re

import pytest

from tests.console.browser import programs, started
from tests.how_to.follow import ROOT

SITE = ROOT / "build" / "site"
PAGES = ("architecture.html", "life-of-a-request.html")
# The theme draws where no script of the page can look, unless this one was there first.
OPENED = """
const real = Element.prototype.attachShadow;
Element.prototype.attachShadow = function () { return real.call(this, {mode: 'open'}); };
"""
# The words of each drawing and by how much it is reduced; null for what is still text.
DRAWN = """
return [...document.querySelectorAll('.mermaid')].map((each) => {
  const drawing = each.shadowRoot?.querySelector('svg');
  if (!drawing) return null;
  const width = drawing.getBoundingClientRect().width;
  return [drawing.textContent, width / drawing.viewBox.baseVal.width];
});
"""
LOADED = "return performance.getEntriesByType('resource').map((each) => each.name)"


def test_the_pages_with_diagrams_are_those_that_are_tested() -> None:
    with_script = {path.name for path in SITE.glob("*.html") if "mermaid.min" in path.read_text()}
    assert with_script == set(PAGES)


@pytest.mark.skipif(programs() is None, reason="no Chromium with its driver here")
@pytest.mark.parametrize("page", PAGES)
def test_a_diagram_is_drawn_by_the_site_alone(page: str) -> None:
    """The drawing has every name of its text, and nothing of the page comes from elsewhere."""
    text = (ROOT / "docs" / page.replace(".html", ".md")).read_text("utf-8")
    (source,) = re.findall(r"^```mermaid\n(.*?)^```", text, re.M | re.S)
    named = set(re.findall(r"^    (\w+) --> \w+$", source, re.M))
    named |= set(re.findall(r'\w+\["([^"<]+)', source))
    assert named
    with started() as browser:
        browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=OPENED)
        browser.open((SITE / page).as_uri())
        browser.wait(f"{DRAWN.strip()[:-1]}.some((each) => each?.[1] > 0);")
        ((words, scale),) = browser.run(DRAWN)
        assert [name for name in sorted(named) if name not in words] == []
        assert scale > 0.95  # or it could not be read
        assert [each for each in browser.run(LOADED) if not each.startswith("file:")] == []
        browser.run("document.querySelector('.mermaid').scrollIntoView({block: 'center'})")
        browser.picture(ROOT / "build" / "diagrams" / page.replace(".html", ".png"))
