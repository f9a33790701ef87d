"""What mkdocs calls while it builds the site: pages of the top folder, links to code, diagrams.

The files are written for readers of the repository. Where a link leaves docs/ for a file that is no
page of the site, its text stays and the link goes. A page with a diagram loads Mermaid from the
site itself, since the theme would load it from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Files of the top folder that are pages of the site too.
TOP_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# Where `make docs` installs the package that has Mermaid, and its place in the site.
DIAGRAMS = ROOT / "build" / "docs" / "diagrams" / "artoo_mermaid" / "assets"
SCRIPT = "assets/javascripts/mermaid.min.js"
RAW = "benchmarks/results"  # measured figures, which are files of the site too
# A wide diagram is scrolled: one that is reduced to the page's width cannot be read.
NATURAL_SIZE = '%%{init: {"flowchart": {"useMaxWidth": false}}}%%\n'
SCROLLED = "<style>.mermaid { overflow-x: auto }</style>"
_DIAGRAM = "```mermaid\n"
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^][]|\[[^]]*\])*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def on_config(config: Any, **_: Any) -> Any:
    """Put all decisions into the menu, in their order."""
    (section,) = [each for each in config["nav"] if "Explanation" in each]
    (decisions,) = [
        each["Decisions"]
        for each in section["Explanation"]
        if isinstance(each, dict) and "Decisions" in each
    ]
    decisions += [f"decisions/{name}" for name in decision_names()]
    return config


def decision_names() -> list[str]:
    """Return the files of all decisions, the template included."""
    return sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages of the top folder, the raw figures, and Mermaid with its licence."""
    from mkdocs.structure.files import File  # type: ignore[import-not-found, unused-ignore]

    for name in TOP_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text("utf-8")))
    for path in sorted((ROOT / RAW).glob("*.json")):
        files.append(File.generated(config, f"data/{path.name}", content=path.read_text("utf-8")))
    for name, source in ((SCRIPT, "mermaid.min.js"), (f"{SCRIPT}.txt", "NOTICE.md")):
        files.append(File.generated(config, name, abs_src_path=str(DIAGRAMS / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with links to pages of the site, or with their text alone."""
    return for_site(markdown, page.file.src_uri).replace(_DIAGRAM, _DIAGRAM + NATURAL_SIZE)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Return the HTML of a page, which loads Mermaid if it has a diagram."""
    return with_script(output, page.file.dest_uri)


def with_script(html: str, page: str) -> str:
    """Return a page's HTML with the script that its diagrams need; `page` is its path in the site.

    The theme draws with the Mermaid that is there when its own script runs, so it comes first.
    """
    if '<pre class="mermaid">' not in html:
        return html
    address = posixpath.relpath(SCRIPT, posixpath.dirname(page) or ".")
    body, scripts = html[: html.rindex("</body>")], html[html.rindex("</body>") :]
    first = body.index("<script src=")
    own = f'{SCROLLED}<script src="{address}"></script>\n'
    return f"{body[:first]}{own}{body[first:]}{scripts}"


def for_site(markdown: str, page: str) -> str:
    """Return a page's text with the links of the site; `page` is its path below docs/."""
    in_top_folder = page in TOP_PAGES
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_relinked(markdown[end : fence.start()], page, in_top_folder), fence[0]]
        end = fence.end()
    return "".join([*parts, _relinked(markdown[end:], page, in_top_folder)])


def _relinked(text: str, page: str, in_top_folder: bool) -> str:
    def replaced(match: re.Match[str]) -> str:
        target, mark, anchor = match["target"].partition("#")
        if "://" in target or not target or target.startswith("mailto:"):
            return match[0]
        place = "" if in_top_folder else posixpath.join("docs", posixpath.dirname(page))
        path = posixpath.normpath(posixpath.join(place, target))
        found = _page_of(path)
        if found is None:
            return match["text"]
        relative = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"[{match['text']}]({relative}{mark}{anchor})"

    return _LINK.sub(replaced, text)


def _page_of(path: str) -> str | None:
    """Return the page or file below docs/ for a path of the repository, or None."""
    if path in TOP_PAGES:
        return path
    if path == "README.md":
        return "index.md"
    if path.startswith(f"{RAW}/") and (ROOT / path).is_file():
        return f"data/{path.rpartition('/')[2]}"
    if path.startswith("docs/") and (ROOT / path).is_dir():
        path = f"{path}/README.md"
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    # A file that is missing keeps its link, so that the build refuses it.
    return None if (ROOT / path).exists() else path
