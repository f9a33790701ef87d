"""The report of a failure, and the errors of the command line."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv.manager import KVManager
from tests.sim.__main__ import explain, main, run_seed
from tests.sim.events import Arrival, Fault
from tests.sim.report import world_as_python
from tests.sim.simulation import Simulation
from tests.sim.world import World

WORLD = World(
    seed=5,
    config=CoreConfig(num_blocks=9, max_model_len=9, groups=(KVGroup(window=3),)),
    events=(
        (2, Arrival(name="r0", prompt=(7,), max_tokens=3)),
        (4, Fault(kind="jump", number=0.05)),
    ),
    slowness=0.3,
)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the program with this command line."""
    monkeypatch.setattr(sys, "argv", ["tests.sim", *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)  # keep pytest's handlers
    return main()


def test_a_world_is_written_as_python() -> None:
    """Defaults are left out, so the text equals the definition of WORLD above."""
    assert world_as_python(WORLD).split("\n") == [
        "World(",
        "    seed=5,",
        "    config=CoreConfig(num_blocks=9, max_model_len=9, groups=(KVGroup(window=3),)),",
        "    events=(",
        "        (2, Arrival(name='r0', prompt=(7,), max_tokens=3)),",
        "        (4, Fault(kind='jump', number=0.05)),",
        "    ),",
        "    slowness=0.3, refuse_at=None, store='none',",
        ")",
    ]


def test_a_failure_is_reported_with_the_state_of_the_core(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A core that commits no block fails soon; search and replay both report the state."""
    monkeypatch.setattr(KVManager, "commit", lambda manager, sequence: None)
    seed, failure = next((seed, why) for seed, _, why in map(run_seed, range(50)) if why)
    explain(seed, failure, shrinks=True)
    found = capsys.readouterr().out
    assert run(monkeypatch, "--seeds", "1", "--from", str(seed), "--trace") == 1
    replayed = capsys.readouterr().out
    assert f"-m tests.sim --seeds 1 --from {seed} --trace\n" in found
    assert "\nWorld(\n" in found
    for output in (found, replayed):
        assert " FAILED: IntegrityError: " in output
        assert "computed, but not committed" in output
        assert "\n     running r" in output
        assert " blocks free of " in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "abc"], "'abc' is not a whole number of at least 1"),
        (["--seeds", "0"], "'0' is not a whole number of at least 1"),
        (["--from", "-5"], "'-5' is not a whole number of at least 0"),
        (["--workers", "0"], "'0' is not a whole number of at least 1"),
        (["--only", "budget"], "add --planted"),
        (["--planted", "--seeds", "5"], "omit --seeds"),
        (["--planted", "--kind", "programs"], "omit --seeds"),
        (["--kind", "other"], "invalid choice"),
    ],
)
def test_a_wrong_command_line_is_an_error(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No world runs, so the program must not report that all hold."""
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unknown_planted_bug_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the file with the names."""
    assert run(monkeypatch, "--planted", "--only", "nonsense") == 2
    assert "tests/sim/bugs have the names" in capsys.readouterr().out


def test_a_wrong_cell_is_reported_with_its_content_and_the_right_one() -> None:
    """An overwritten cell is reported with the token and position in it."""
    simulation = Simulation(replace(WORLD, events=(), slowness=0.0))
    simulation._arrive(Arrival(name="r0", prompt=(7, 8), max_tokens=9))
    simulation._tick()
    block = simulation.engine.scheduler.running[0].tables[0][0]
    for worker in simulation.executor.workers:
        cells = worker.memory.cells[0][block]
        cells[1] = cells[0]
    with pytest.raises(AssertionError, match="position 1 should hold token 8, and holds token 7"):
        simulation.run()
