"""The files of a tokenizer with tokens for text between two others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.server.engine import make_directory

FIRST = 290  # the vocabulary's last merges, which no text of the tests needs


def make_infill_directory(directory: Path, marks: Sequence[str]) -> Path:
    """Write the files; the marks have the ids from `FIRST` on."""
    directory.mkdir(parents=True, exist_ok=True)
    make_directory(directory)
    path = directory / "tokenizer.json"
    described = json.loads(path.read_text("utf-8"))
    names = {name: each for name, each in described["model"]["vocab"].items() if each < FIRST}
    described["model"]["vocab"] = names
    merges = described["model"]["merges"]
    described["model"]["merges"] = merges[: FIRST - 2 - 256]
    shape = described["added_tokens"][0]
    for place, mark in enumerate(marks):
        described["added_tokens"].append({**shape, "id": FIRST + place, "content": mark})
    path.write_text(json.dumps(described), "utf-8")
    return directory
