"""A failure tells enough to be found, and a wrong command line is refused in a sentence."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv_manager import KVManager
from tests.sim.__main__ import explain, main, run_seed
from tests.sim.report import world_as_python
from tests.sim.simulation import Simulation
from tests.sim.world import Arrival, Fault, World

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
    """The program with this command line."""
    monkeypatch.setattr(sys, "argv", ["tests.sim", *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest's own stay
    return main()


def test_a_world_is_written_as_the_python_that_makes_it() -> None:
    """Defaults are left out; what remains is what WORLD above says."""
    assert world_as_python(WORLD).split("\n") == [
        "World(",
        "    seed=5,",
        "    config=CoreConfig(num_blocks=9, max_model_len=9, groups=(KVGroup(window=3),)),",
        "    events=(",
        "        (2, Arrival(name='r0', prompt=(7,), max_tokens=3)),",
        "        (4, Fault(kind='jump', number=0.05)),",
        "    ),",
        "    slowness=0.3, refuse_at=None,",
        ")",
    ]


def test_a_failure_shows_the_state_it_was_found_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a core that offers no block, a world soon fails; search and replay tell how."""
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
        assert "computed, not offered" in output
        assert "\n     running r" in output
        assert " blocks free of " in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "abc"], "'abc' is not a whole number from 1 on"),
        (["--seeds", "0"], "'0' is not a whole number from 1 on"),
        (["--from", "-5"], "'-5' is not a whole number from 0 on"),
        (["--workers", "0"], "'0' is not a whole number from 1 on"),
        (["--only", "budget"], "give --planted as well"),
        (["--planted", "--seeds", "5"], "leave --seeds"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No world is run, least of all none of them with the verdict that all hold."""
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_no_such_planted_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That nothing was tried is not a success, and says where the names are."""
    assert run(monkeypatch, "--planted", "--only", "nonsense") == 2
    assert "planted_bugs.py has the names" in capsys.readouterr().out


def test_what_a_wrong_cell_holds_is_told_beside_what_it_should() -> None:
    """A cell overwritten behind the core's back is named by token and position."""
    simulation = Simulation(replace(WORLD, events=(), slowness=0.0))
    simulation._arrive(Arrival(name="r0", prompt=(7, 8), max_tokens=9))
    simulation._tick()
    block = simulation.engine.scheduler.running[0].tables[0][0]
    for worker in simulation.executor.workers:
        worker.memory[block][1] = worker.memory[block][0]
    with pytest.raises(AssertionError, match="position 1 should hold token 8, and holds token 7"):
        simulation.run()
