"""The pages for users, block by block: what a reader types, and why some blocks are not run.

A block of a page is one of these, by the word behind its fence:

- `console`: lines that begin with `$ ` are typed, one after the other; a line that ends with a
  backslash goes on in the next one. Other lines show what is printed.
- `python`: a program of its own.
- `text`, `json`, `yaml`: shown to be read. Behind a line that ends with "File `NAME`:" any block is
  saved under that name first.

`<!-- not run: REASON -->` in the line before a block says why it is only read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.how_to.follow import ROOT

DOCS = ROOT / "docs"
TASKS = (
    *("adapters", "batch", "chat", "embeddings", "gguf", "measure", "scale", "speculation"),
    *("stream", "structured-output", "tools"),
)
PAGES = (
    "README.md",
    *(f"docs/tutorials/{name}.md" for name in ("first-answer", "python", "slow-request")),
    *(f"docs/how-to/{name}.md" for name in TASKS),
    *(f"docs/coming-from/{name}.md" for name in ("llama-cpp", "ollama", "sglang", "vllm")),
)
RUN = ("console", "python")
READ = ("text", "json", "yaml")
_BLOCK = re.compile(
    r"^(?P<before>[^\n]*)\n(?:\n)?```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NOT_RUN = re.compile(r"^<!-- not run: (?P<reason>.+) -->$")
_FILE = re.compile(r"File `([\w./-]+)`:$")


class Block(NamedTuple):
    """A block of a page."""

    page: str
    kind: str
    code: str
    file: str = ""  # the name under which it is saved
    reason: str = ""  # why it is not run

    @property
    def commands(self) -> list[str]:
        """The commands that are typed, without their prompts."""
        found: list[str] = []
        goes_on = False
        for line in self.code.splitlines():
            if goes_on:
                found[-1] += f"\n{line}"
            elif line.startswith("$ "):
                found.append(line[2:])
            else:
                continue
            goes_on = line.endswith("\\")
        return found


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = (ROOT / page).read_text("utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        file, reason = _FILE.search(match["before"]), _NOT_RUN.search(match["before"])
        found.append(
            Block(
                page,
                match["kind"],
                match["code"],
                file[1] if file else "",
                reason["reason"] if reason else "",
            )
        )
    assert len(found) * 2 == f"\n{text}".count("\n```"), f"{page}: a fence stands alone"
    return found


def path_of(page: str) -> Path:
    """Return the file of a page."""
    return ROOT / page
