"""A check of the built site: no dead link, and nothing that a page loads from elsewhere.

`make docs` runs it: python -m tests.docs.built_site build/site
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MERMAID = "mermaid.min.js"
# Attributes whose address a browser fetches by itself, by element.
_LOADED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "use": ("href", "xlink:href"),
    "image": ("href", "xlink:href"),
}
# Relations of <link> that are addresses only, and load nothing.
_NOT_LOADED = {"canonical", "prev", "next", "alternate", "author", "license", "help", "edit"}
_CSS_ADDRESS = re.compile(r"""(?:@import\s+["']|url\(\s*["']?)([^"')\s]+)""")


class Page(HTMLParser):
    """A page: its links, the addresses that it loads, and the places in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.draws_diagrams = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the addresses of an element."""
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        self.draws_diagrams |= "mermaid" in given.get("class", "").split()
        for name in _LOADED.get(tag, ()):
            if given.get(name):
                words = given[name].split(",") if name == "srcset" else [given[name]]
                self.loads += [word.split()[0] for word in words]
        if tag == "link" and not _NOT_LOADED & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        elif tag in ("a", "area", "link") and "href" in given:
            self.links.append(given["href"])
        self.loads += _CSS_ADDRESS.findall(given.get("style", ""))


def problems(site: Path) -> Iterator[str]:
    """Yield what is wrong with a site, a line each."""
    site = site.resolve()
    pages = {path: _parsed(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site} has no pages"
    for path, page in pages.items():
        shown = path.relative_to(site)
        for address in (*page.loads, *page.links):
            if address in page.loads and _is_elsewhere(address):
                yield f"{shown} loads {address}"
            elif not _is_elsewhere(address) and not _is_there(address, path, site, pages):
                yield f"{shown}: {address} leads nowhere"
        if page.draws_diagrams and not _draws_by_itself(page):
            yield f"{shown} has a diagram, for which a script would be loaded from elsewhere"
    for path in sorted(site.rglob("*.css")):
        for address in filter(_is_elsewhere, _CSS_ADDRESS.findall(path.read_text("utf-8"))):
            yield f"{path.relative_to(site)} loads {address}"


def _parsed(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text("utf-8"))
    page.close()
    return page


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _draws_by_itself(page: Page) -> bool:
    """Return whether Mermaid is the site's own, and there before the theme looks for it."""
    scripts = [posixpath.basename(urlsplit(each).path) for each in page.loads]
    theme = next((at for at, name in enumerate(scripts) if name.startswith("bundle.")), None)
    return MERMAID in scripts[:theme]


def _is_there(address: str, path: Path, site: Path, pages: dict[Path, Page]) -> bool:
    """Return whether a file, and the place in it, exist."""
    parts = urlsplit(address)
    if parts.scheme == "data":
        return True
    where = unquote(parts.path)
    start = site if where.startswith("/") else path.parent
    target = path if not where else (start / where.lstrip("/")).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.is_file() or not target.is_relative_to(site):
        # The page for a missing address is served at every depth, so its links begin with /.
        return path.name == "404.html"
    place = unquote(parts.fragment)
    return not place or (target in pages and place in pages[target].places)


def main() -> int:
    """Print what is wrong with the site that is named."""
    site = Path(sys.argv[1])
    found = list(problems(site))
    print(*found, sep="\n", end="\n" if found else "")
    num_pages = len(list(site.rglob("*.html")))
    print(f"{num_pages} pages, {len(found)} problems")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
