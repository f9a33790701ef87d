"""Every family is found by its names, and its file is a declaration and nothing more."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import octavo.models
from octavo.models.config_reader import ConfigurationError
from octavo.models.registry import FAMILIES, family_of

FILES = sorted({module for module, _ in FAMILIES.values()})
ALLOWED = ("octavo.layers", "octavo.models.config_reader", "octavo.models.spec")
# Of the standard library, what declaring needs.
PLAIN = ("__future__", "collections.abc", "dataclasses", "math", "typing")


def test_an_unknown_architecture_is_told_the_nearest() -> None:
    """What may have been meant comes first; if nothing is near, all are listed."""
    with pytest.raises(ConfigurationError, match="'Gemma9ForCausalLM' is not supported") as error:
        family_of("Gemma9ForCausalLM")
    near = str(error.value).partition("nearest that are: ")[2].split(", ")
    assert len(near) == 3
    assert near[0] in {"GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"}
    assert set(near) <= set(FAMILIES)
    with pytest.raises(ConfigurationError) as error:
        family_of("")
    assert all(name in str(error.value) for name in FAMILIES)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_family_knows_its_names(architecture: str) -> None:
    """The registry and the classes say the same."""
    assert architecture in family_of(architecture).architectures


@pytest.mark.parametrize("file", FILES)
def test_all_of_a_familys_names_are_registered(file: str) -> None:
    """A name that a class claims is found under that class."""
    module = importlib.import_module(f"octavo.models.{file}")
    for name in {name for source, name in FAMILIES.values() if source == file}:
        for architecture in getattr(module, name).architectures:
            assert FAMILIES[architecture] == (file, name)


def _imports(source: str) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def _is_allowed(name: str) -> bool:
    inside = any(name == package or name.startswith(f"{package}.") for package in ALLOWED)
    return inside or name in PLAIN


@pytest.mark.parametrize("file", FILES)
def test_a_model_file_is_a_declaration(file: str) -> None:
    """It imports layers and the spec: no backend, cache, loader, rank, nor another family."""
    path = Path(octavo.models.__path__[0]) / f"{file}.py"
    wrong = {name for name in _imports(path.read_text("utf-8")) if not _is_allowed(name)}
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
def test_the_check_would_notice(line: str) -> None:
    """Each of these makes it fail."""
    assert not all(_is_allowed(name) for name in _imports(line))
