"""Lets the tests run over another build of the extension: one that watches every access."""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

NAME = "octavo.backends.native._native"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Understood where this directory is what pytest was told to run."""
    parser.addoption("--native-from", help="a directory with another build of the extension")


def pytest_configure(config: pytest.Config) -> None:
    """Put the other build in the place of the usual one, before anything imports that."""
    directory = config.getoption("--native-from", default=None)
    if directory is None:
        return
    (path,) = map(str, Path(directory).glob("_native*.so"))
    spec = spec_from_file_location(NAME, path, loader=ExtensionFileLoader(NAME, path))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    import octavo.backends.native

    octavo.backends.native._native = module
