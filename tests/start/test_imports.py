"""A start imports what every engine needs; the rest is imported by what uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.tiny import make_model

# Runs in a fresh interpreter, where no module that pytest has loaded hides an import.
ANSWER = """
import sys
from octavo import LLM, SamplingParams
llm = LLM(sys.argv[1], num_gpu_blocks_override=20)
llm.generate([[1, 2]], SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)
print(*sys.modules)
"""
RUN = """
import sys
from octavo.cli import main
words = ["x", "--num-gpu-blocks-override", "20", "--max-tokens", "1"]
assert main(["run", sys.argv[1], *words]) == 0
print()
print(*sys.modules)
"""
# What an answer of one token does not use, by the beginnings of modules' names.
UNUSED = (
    *("asyncio", "jinja2", "torch", "ssl", "zmq"),
    "octavo.adapter_copies.copies",
    "octavo.adapters",
    *("octavo.api.adapters", "octavo.api.async_llm", "octavo.api.beam_search"),
    *("octavo.api.pooling.inputs", "octavo.api.pooling.outputs", "octavo.api.pooling.params"),
    *("octavo.api.pooling.results", "octavo.api.pooling.tasks", "octavo.api.pooling.vectors"),
    *("octavo.backends.adapters", "octavo.backends.further"),
    *("octavo.backends.native.adapters.", "octavo.backends.native.packed_cache.directory"),
    *("octavo.backends.native.ranks.", "octavo.backends.native.work"),
    *("octavo.engine.adapters", "octavo.engine.nodes", "octavo.engine.own_classes"),
    *("octavo.engine.ranks", "octavo.engine.stages"),
    *("octavo.loader.blocks", "octavo.loader.codebooks"),
    *("octavo.models.drafters", "octavo.models.gguf", "octavo.models.read_pooling"),
    *("octavo.options.quantization", "octavo.options.transport"),
    *("octavo.runner.adapter_slots", "octavo.runner.transfers"),
    *("octavo.runner.speculate.ahead", "octavo.runner.speculate.draft_model"),
    *("octavo.runner.speculate.heads", "octavo.runner.speculate.own_class"),
    *("octavo.text.chat", "octavo.text.pairs", "octavo.workers"),
)
# Each costs a third of a millisecond of every start. What one more is for should be in use then.
MOST_OWN = 285


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def imported(model: Path) -> list[str]:
    """Return the names of all modules that a process has imported when it has one token."""
    return modules_of(ANSWER, model)


def modules_of(program: str, model: Path) -> list[str]:
    """Run a program in a new process; return the modules that its last line names."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(model)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1].split()


def test_a_start_imports_nothing_of_what_it_does_not_use(imported: list[str]) -> None:
    """A method, or the branch that makes a part, imports it; annotations need no import."""
    assert "octavo.runner.model_runner" in imported
    assert [name for name in imported if name.startswith(UNUSED)] == []


def test_a_start_imports_few_modules(imported: list[str]) -> None:
    """The number is that of today, rounded up."""
    own = [name for name in imported if name.startswith("octavo")]
    assert len(own) <= MOST_OWN, f"{len(own)} modules: {' '.join(own)}"


def test_run_answers_a_prompt_without_an_event_loop(model: Path) -> None:
    """Sockets and TLS, which asyncio imports, are for conversations and servers."""
    modules = modules_of(RUN, model)
    assert "octavo.cli.chat.single" in modules
    needless = ("asyncio", "ssl", "concurrent", "octavo.api.async_llm", "octavo.dialects")
    assert [name for name in modules if name.startswith((*needless, "octavo.server"))] == []
