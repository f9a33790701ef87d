"""docs/architecture.md against the code: the diagram's arrows and the tables' duties.

The page has one diagram and two tables. Their expected content is computed from the import graph
and from the docstrings; `python -m tests.tidy.architecture --write` writes it into the page. The
diagram draws an arrow `a --> b` where a imports b, without arrows that others imply (the transitive
reduction).
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

from tests.tidy.size_rules import first_sentence
from tests.tidy.source import ROOT, Source, sources

PAGE = ROOT / "docs" / "architecture.md"
Arrows = Mapping[str, Iterable[str]]  # node → what it imports


def import_graph() -> grimp.ImportGraph:
    """Read the package's import graph from the files, without running them."""
    return grimp.build_graph("octavo", cache_dir=None)


def import_arrows(root: str) -> dict[str, list[str]]:
    """Map each child of package `root` to the siblings it imports, at any depth."""
    graph = import_graph()
    arrows: dict[str, set[str]] = {
        child.removeprefix(f"{root}."): set() for child in graph.find_children(root)
    }
    for importer in graph.find_descendants(root):
        for imported in graph.find_modules_directly_imported_by(importer):
            if imported.startswith(f"{root}."):
                arrows[_child(importer, root)].add(_child(imported, root))
    return {node: sorted(targets - {node}) for node, targets in sorted(arrows.items())}


def _child(module: str, root: str) -> str:
    """Return the child of `root` that contains `module`: (octavo.core.plan, octavo) → core."""
    return module.removeprefix(f"{root}.").partition(".")[0]


def reduced(arrows: Arrows) -> dict[str, list[str]]:
    """Remove arrows that others imply; refuse a cycle, which has no such drawing."""
    reach: dict[str, frozenset[str]] = {}

    def reachable(node: str, path: tuple[str, ...]) -> frozenset[str]:
        if node in path:
            raise ValueError(f"imports in a circle: {' → '.join((*path, node))}")
        if node not in reach:
            targets = arrows[node]
            reach[node] = frozenset(targets).union(*(reachable(t, (*path, node)) for t in targets))
        return reach[node]

    for node in arrows:
        reachable(node, ())
    return {
        node: [t for t in targets if not any(t in reach[other] for other in targets)]
        for node, targets in arrows.items()
    }


def diagram(packages: Arrows, core: Arrows) -> str:
    """Return the Mermaid text of the drawing: the packages, and the modules of the core."""
    modules = {f"core.{n}": [f"core.{t}" for t in targets] for n, targets in core.items()}
    inside = [f"    {line}" for line in ("subgraph core", *_arrow_lines(modules), "end")]
    outside = [line for line in _arrow_lines(packages) if line.strip() != "core"]
    return "\n".join(["```mermaid", "flowchart TD", *outside, *inside, "```", ""])


def _arrow_lines(arrows: Arrows) -> list[str]:
    """Return a line for every arrow, and one for every node without arrows."""
    drawn = reduced(arrows)
    pointed_at = {target for targets in drawn.values() for target in targets}
    lines = [f"{node} --> {target}" for node, targets in drawn.items() for target in targets]
    lines += [node for node, targets in drawn.items() if not targets and node not in pointed_at]
    return [f"    {line}" for line in lines]


def duties(paths: Iterable[tuple[str, Source]]) -> str:
    """Format a table of names and first sentences."""
    rows = [f"| `{name}` | {first_sentence(source)} |\n" for name, source in paths]
    return "".join(["| name | duty |\n", "| --- | --- |\n", *rows])


def demanded() -> dict[str, str]:
    """Compute the expected text of each of the page's blocks."""
    ours = {str(source.path): source for source in sources() if source.is_python}
    packages, core = import_arrows("octavo"), import_arrows("octavo.core")

    def files(root: str, names: Arrows) -> list[tuple[str, Source]]:
        return [(n, ours.get(f"{root}/{n}/__init__.py") or ours[f"{root}/{n}.py"]) for n in names]

    return {
        "diagram": diagram(packages, core),
        "packages": duties(files("octavo", packages)),
        "core": duties(files("octavo/core", core)),
    }


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """Replace each marked block of the page; a missing marker is an error."""
    for name, text in blocks.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page must have one block, from '{begin.strip()}' to '{end}'")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    return page


def main(page: Path = PAGE) -> None:
    """Print the expected page, or with --write update the file."""
    filled = fill(page.read_text("utf-8"), demanded())
    if sys.argv[1:] == ["--write"]:
        page.write_text(filled, "utf-8")
    else:
        print(filled)


if __name__ == "__main__":
    main()
