"""A picture of panels under a title, as SVG or as a page, for light and dark screens."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from octavo.bench.plot.panel import HEIGHT, WIDTH, Panel, drawn
from octavo.bench.served.answer import printable

_HEAD = 64  # pixels of the title
_MOST_TITLE = 80  # characters, as wide as the picture
# Plain colours in place of CSS variables, which programs that convert SVG do not know.
_STYLE = """
svg{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
.back{fill:#fff}.title{font-size:17px;font-weight:600}.head{font-size:13px;font-weight:600}
.title,.head{fill:#1f2328}.soft{fill:#59636e}
.grid{stroke:#e4e8ec}.axis{stroke:#8c959f}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.a{stroke:#0969da}.b{stroke:#bc4c00}.b-text{fill:#bc4c00}.dot{fill:#fff;stroke-width:2}
.dashed{fill:none;stroke-width:1.5;stroke-dasharray:6 4}
.mark{stroke:#8250df}.mark-text{fill:#8250df;font-weight:600}
.goal{stroke:#1a7f37}.goal-text{fill:#1a7f37}.bad{fill:#cf222e;fill-opacity:.06}
@media(prefers-color-scheme:dark){
.back{fill:#0d1117}.title,.head{fill:#e6edf3}.soft{fill:#9198a1}
.grid{stroke:#262c34}.axis{stroke:#6e7681}
.a{stroke:#58a6ff}.b{stroke:#f0883e}.b-text{fill:#f0883e}.dot{fill:#0d1117}
.mark{stroke:#bc8cff}.mark-text{fill:#bc8cff}
.goal{stroke:#3fb950}.goal-text{fill:#3fb950}.bad{fill:#ff7b72;fill-opacity:.09}
}
"""


def as_svg(title: str, about: str, panels: Sequence[Panel]) -> str:
    """Return the picture; `about` is the line below its title."""
    title, about = printable(title)[:_MOST_TITLE], printable(about)
    height = _HEAD + HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        f' width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><desc>{escape(about)}</desc>",
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="24" y="28">{escape(title)}</text>',
        f'<text class="soft" x="24" y="48">{escape(about)}</text>',
    ]
    for index, panel in enumerate(panels):
        parts += drawn(panel, _HEAD + HEIGHT * index)
    return "\n".join((*parts, "</svg>\n"))


def as_page(title: str, about: str, panels: Sequence[Panel]) -> str:
    """Return a page with the picture, which loads nothing."""
    title = printable(title)[:_MOST_TITLE]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title>"
        "<style>html{color-scheme:light dark}body{margin:0;background:#fff;text-align:center}"
        "svg{max-width:100%;height:auto}"
        "@media(prefers-color-scheme:dark){body{background:#0d1117}}</style></head>\n"
        f"<body>{as_svg(title, about, panels)}</body></html>\n"
    )


def write(path: Path, title: str, about: str, panels: Sequence[Panel]) -> None:
    """Write the picture in the form that the file's name says."""
    make = as_page if path.suffix == ".html" else as_svg
    path.write_text(make(title, about, panels), "utf-8")
