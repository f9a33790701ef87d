"""Every family is found by its architectures, and its file only declares layers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import octavo.models
from octavo.layers import Model
from octavo.models.config_reader import ConfigurationError
from octavo.models.registry import FAMILIES, family_of

FILES = sorted({module for module, _ in FAMILIES.values()})
ALLOWED = ("octavo.layers", "octavo.models.config_reader")
# The parts of the standard library that a declaration needs.
PLAIN = ("__future__", "collections.abc", "math", "msgspec.structs", "typing")


def test_the_error_for_an_unknown_architecture_lists_the_nearest() -> None:
    """The most similar names come first; if none is similar, a few are there, and their number."""
    with pytest.raises(ConfigurationError, match="'Gemma9ForCausalLM' is not supported") as error:
        family_of("Gemma9ForCausalLM")
    near = str(error.value).partition("the nearest are: ")[2].split(", ")
    assert len(near) == 3
    assert near[0] in {"GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"}
    assert set(near) <= set(FAMILIES)
    with pytest.raises(ConfigurationError) as error:
        family_of("")
    assert f"of the {len(FAMILIES)} that are" in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_registered_class_is_a_model_that_reads_a_config(architecture: str) -> None:
    family = family_of(architecture)
    assert isinstance(family, type)
    assert issubclass(family, Model)
    assert callable(family_of(architecture).read)


def imported(source: str) -> set[str]:
    """Return every module that a file imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def is_allowed(name: str) -> bool:
    inside = any(name == package or name.startswith(f"{package}.") for package in ALLOWED)
    return inside or name in PLAIN


@pytest.mark.parametrize("file", FILES)
def test_a_model_file_is_a_declaration(file: str) -> None:
    """A file imports layers and the reader: no backend, cache, loader, rank, or other family."""
    path = Path(octavo.models.__path__[0]) / f"{file}.py"
    wrong = {name for name in imported(path.read_text("utf-8")) if not is_allowed(name)}
    assert not wrong


@pytest.mark.parametrize(
    "line",
    [
        "import torch",
        "import octavo.layers.moe, numpy",
        "from octavo.models.llama import Block",
        "from octavo.models import config",
        "from . import config",
        "from octavo.backends.base import Backend",
        "def f():\n    import os",
    ],
)
def test_the_check_notices_other_imports(line: str) -> None:
    assert not all(is_allowed(name) for name in imported(line))
