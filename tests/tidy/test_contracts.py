"""The import contracts of pyproject.toml reject what they are meant to prevent.

Some packages that the contracts name do not exist yet, so a mistake in a contract could go
unnoticed for months. The tests create a small tree that has them, with one wrong import at a time.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

MAP = "Arrows point down"
DATA_PLANE = "What a model is knows nothing of the core"
CORE = "The core stands on the standard library alone"
BORDER = "The core's inside is its own"
TORCH = "Only the torch and CUDA backends import torch"
DIALECTS = "A dialect does not know another"
CONTRACTS = (MAP, DIALECTS, DATA_PLANE, CORE, BORDER, TORCH)

# An editable install leads every `octavo` to this checkout; here it must be the tree's own.
LINT = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "Inplace" not in type(finder).__name__]
from importlinter.cli import lint_imports
raise SystemExit(lint_imports())
"""

DECENT = {
    "octavo/__init__.py": "",
    "octavo/options/__init__.py": "",
    "octavo/options/engine.py": "import msgspec",
    "octavo/core/__init__.py": "",
    "octavo/core/plan.py": "import dataclasses",
    "octavo/core/request.py": "",
    "octavo/core/scheduler.py": "import octavo.core.plan",
    "octavo/client/__init__.py": "import octavo.core.plan",
    "octavo/server/__init__.py": "import starlette, octavo.client, octavo.dialects.ollama.routes",
    "octavo/dialects/__init__.py": "",
    "octavo/dialects/common/__init__.py": "",
    "octavo/dialects/common/parameters.py": "",
    "octavo/dialects/ollama/__init__.py": "",
    "octavo/dialects/ollama/routes.py": "import octavo.dialects.common.parameters",
    "octavo/dialects/openai/__init__.py": "",
    "octavo/dialects/openai/chat.py": "import octavo.dialects.common.parameters",
    "octavo/exec/__init__.py": "import octavo.runner, octavo.core.plan",
    "octavo/runner/__init__.py": "import numpy, octavo.models, octavo.core.plan",
    "octavo/models/__init__.py": "import octavo.layers",
    "octavo/layers/__init__.py": "",
    "octavo/loader/__init__.py": "",
    "octavo/wire/__init__.py": "import msgspec, octavo.core.request",
    "octavo/backends/__init__.py": "import octavo.layers",
    "octavo/backends/native/__init__.py": "",
    "octavo/backends/torch/__init__.py": "import torch",
    "octavo/backends/torch/triton/__init__.py": "import torch, triton",
}


def broken_contracts(tree: dict[str, str], root: Path) -> list[str]:
    """Return the names of the contracts that a tree of these files breaks."""
    for path, text in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    shutil.copy(ROOT / "pyproject.toml", root)
    command = [sys.executable, "-c", LINT]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    verdicts = {
        name: line.removeprefix(name).split()[0]
        for name in CONTRACTS
        for line in run.stdout.splitlines()
        if line.startswith(f"{name} ")
    }
    assert list(verdicts) == list(CONTRACTS), run.stdout + run.stderr
    broken = [name for name, verdict in verdicts.items() if verdict == "BROKEN"]
    assert run.returncode == bool(broken)
    return broken


def test_decent_imports_pass(tmp_path: Path) -> None:
    """Otherwise the tests below would prove nothing."""
    assert broken_contracts(DECENT, tmp_path) == []


@pytest.mark.parametrize(
    ("path", "text", "broken"),
    [
        ("octavo/client/__init__.py", "import octavo.server", [MAP]),
        ("octavo/dialects/ollama/chat.py", "import octavo.dialects.openai.chat", [DIALECTS]),
        ("octavo/dialects/common/parameters.py", "import octavo.dialects.openai.chat", [DIALECTS]),
        ("octavo/dialects/tgi/__init__.py", "import octavo.server", [MAP, DIALECTS]),
        ("octavo/client/process.py", "def f():\n    import octavo.server", [MAP]),
        ("octavo/runner/__init__.py", "import octavo.exec", [MAP]),
        ("octavo/options/engine.py", "import octavo.client", [MAP]),
        ("octavo/wire/facts.py", "import octavo.models", [MAP]),
        ("octavo/wire/facts.py", "from octavo.loader import ModelFiles", [MAP]),
        ("octavo/newcomer/__init__.py", "", [MAP]),
        ("octavo/core/engine.py", "import octavo.exec", [MAP, CORE]),
        ("octavo/core/engine.py", "import octavo.options.engine", [MAP, CORE]),
        ("octavo/core/engine.py", "import numpy", [CORE]),
        ("octavo/core/engine.py", "import torch", [CORE, TORCH]),
        ("octavo/models/llama.py", "import octavo.core.plan", [DATA_PLANE]),
        ("octavo/backends/native/record.py", "import octavo.core.plan", [DATA_PLANE]),
        ("octavo/client/client.py", "import octavo.core.scheduler", [BORDER]),
        ("octavo/runner/slots.py", "from octavo.core.scheduler import Scheduler", [BORDER]),
        ("octavo/server/routes.py", "import torch", [TORCH]),
        ("octavo/layers/norm.py", "from torch import nn", [TORCH]),
        ("octavo/models/llama.py", "import triton.language", [TORCH]),
        ("octavo/backends/native/pack.py", "import torch", [TORCH]),
    ],
)
def test_a_wrong_import_breaks_its_contract(
    path: str, text: str, broken: list[str], tmp_path: Path
) -> None:
    """A wrong import breaks exactly the contracts that forbid it."""
    assert broken_contracts(DECENT | {path: text}, tmp_path) == broken
