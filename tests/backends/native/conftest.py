"""Lets the tests run over another build of the extension: one that watches every access."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

MODULES = (("octavo.backends.native", "_native"), ("tests.backends.native", "_native_test"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option; pytest knows it if this directory is what it was asked to run."""
    parser.addoption("--native-from", help="a directory with another build of the extension")


def pytest_configure(config: pytest.Config) -> None:
    """Replace the usual build by the other one, before anything imports it."""
    directory = config.getoption("--native-from", default=None)
    if directory is None:
        return
    for package, name in MODULES:
        (path,) = map(str, Path(directory).glob(f"{name}.*so"))
        full = f"{package}.{name}"
        spec = spec_from_file_location(full, path, loader=ExtensionFileLoader(full, path))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
        setattr(import_module(package), name, module)
