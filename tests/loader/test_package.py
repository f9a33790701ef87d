"""The names of the package, and what importing it loads."""

import subprocess
import sys

import pytest

from octavo import loader


def test_every_exported_name_exists() -> None:
    assert {name: getattr(loader, name).__class__ for name in loader.__all__}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = loader.nothing


def test_neither_import_nor_resolving_needs_numpy(tmp_path: object) -> None:
    code = (
        "import sys, octavo.loader as loader\n"
        "assert 'octavo.loader.source' not in sys.modules\n"
        "try: loader.resolve('')\n"
        "except loader.CheckpointError: pass\n"
        "assert not {'numpy', 'ml_dtypes', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
