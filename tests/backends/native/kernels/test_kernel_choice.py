"""The choice of kernels from planted times, and the file that keeps what was measured."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.base import Floats
from octavo.backends.native import _native
from octavo.backends.native._native import DEFAULT_AHEAD
from octavo.backends.native.backend import NativeBackend
from octavo.backends.native.kernel_choice import (
    DISTANCES,
    ROWS,
    Choice,
    Trial,
    choose_order_tier,
    choose_products,
    order_trials,
    product_trials,
    tiers_by_order,
)
from octavo.backends.native.measure import ProductCalibration, measured_tier, native_trials
from octavo.backends.native.measured_file import MeasuredFile, describe_choices, machine_key
from octavo.backends.native.tiers import choose_tier, orders
from tests.backends.native import _native_test
from tests.backends.native.test_claims import KEPT, recorded, write_model
from tests.backends.native.tiny import make_batch, make_native
from tests.runner.tiny import FULL

TIERS = ("scalar", "narrow", "wide", "paired")
ORDERS = {"scalar": "fma", "narrow": "fma", "wide": "fma", "paired": "pairs"}
needs_two_orders = pytest.mark.skipif(
    len(set(orders().values())) < 2, reason="this processor has one order of sums"
)


def two_orders() -> tuple[str, str]:
    """Return the best tier of the order that all processors have, and that of another."""
    best = tiers_by_order(_native.tiers(), orders())
    return best.pop("fma"), best.popitem()[1]


class PlantedTrials:
    """Trials whose times are given."""

    def __init__(self, trials: Sequence[Trial], times: dict[Any, float], is_done: bool) -> None:
        self._best = [times.get(trial, times.get(trial.tier, 1.0)) for trial in trials]
        self.is_done = is_done

    def run(self) -> None:
        self.is_done = True

    def begin(self, program: Any) -> None:
        """Measure nothing before the test sets `is_done`."""

    def done(self) -> bool:
        return self.is_done

    def best(self) -> list[float]:
        return self._best


class Plant:
    """A `Measure` that counts its calls."""

    def __init__(self, **times: float) -> None:
        self.times: dict[Any, float] = {**times}
        self.made: list[PlantedTrials] = []

    def __call__(self, trials: Sequence[Trial], seconds: float) -> Any:
        self.made.append(PlantedTrials(trials, self.times, is_done=False))
        return self.made[-1]


# ---- the order of sums ----


def test_an_order_has_one_candidate_its_best_tier() -> None:
    assert tiers_by_order(TIERS, ORDERS) == {"fma": "wide", "pairs": "paired"}


@pytest.mark.parametrize(
    ("wide", "paired", "chosen"),
    [
        (1.0, 1.9, "wide"),  # an Emerald Rapids: pairs at half the rate
        (1.8, 1.0, "paired"),  # a Zen 4
        (0.96, 1.0, "paired"),  # noise
        (math.inf, 1.0, "paired"),
        (1.0, math.inf, "paired"),  # nothing is known about the default, so nothing gains
    ],
)
def test_the_faster_order_is_chosen(wide: float, paired: float, chosen: str) -> None:
    tiers = ["wide", "paired"]
    times = {trial: {"wide": wide, "paired": paired}[trial.tier] for trial in order_trials(tiers)}
    assert choose_order_tier(tiers, times) == chosen


def test_all_numbers_of_rows_count_equally_for_the_order() -> None:
    few, many = order_trials(["wide"])
    times = dict.fromkeys(order_trials(["wide", "paired"]), 1.0)
    assert choose_order_tier(["wide", "paired"], {**times, few: 2.0, many: 0.45}) == "wide"
    assert choose_order_tier(["wide", "paired"], {**times, few: 2.0, many: 0.55}) == "paired"


# ---- products ----


def test_only_kernels_of_equal_bits_compete() -> None:
    for format_ in ("F32", "BF16", "F8By128", "NF4By64"):
        for base in ("wide", "paired"):
            tried = {trial.tier for trial in product_trials(format_, base, TIERS, ORDERS)}
            assert tried <= {tier for tier in TIERS if ORDERS[tier] == ORDERS[base]}
    tried = {trial.tier for trial in product_trials("U4K", "paired", TIERS, ORDERS)}
    assert tried == {"narrow", "wide", "paired"}


def test_every_class_is_measured_cold_and_warm_with_the_default_first() -> None:
    trials = product_trials("U8", "paired", TIERS, ORDERS)
    assert len(set(trials)) == len(trials)
    for rows in ROWS:
        mine = [trial for trial in trials if trial.rows == rows]
        assert mine[0] == Trial("paired", "U8", rows, DEFAULT_AHEAD, True)
        assert {each for each in mine if each.is_cold} == {
            each._replace(is_cold=True) for each in mine if not each.is_cold
        }


def times_of(trials: Sequence[Trial], **changed: tuple[float, float]) -> dict[Trial, float]:
    """Return a second for each trial, but those of named distances for one row: cold, warm."""
    times = dict.fromkeys(trials, 1.0)
    for name, (cold, warm) in changed.items():
        trial = Trial("paired", "U8", 1, int(name.removeprefix("at")), True)
        times[trial], times[trial._replace(is_cold=False)] = cold, warm
    return times


@pytest.mark.parametrize(
    ("changed", "ahead"),
    [
        ({}, DEFAULT_AHEAD),
        ({"at2048": (0.8, 1.0), "at4096": (0.7, 1.4)}, 4096),
        ({"at2048": (0.8, 1.0), "at4096": (0.7, 1.5)}, 2048),  # too slow where panels are warm
        ({"at0": (0.7, 1.0), "at2048": (0.8, 0.5)}, 0),
        ({"at2048": (0.96, 0.96)}, DEFAULT_AHEAD),  # no more than noise
    ],
)
def test_the_fastest_distance_is_chosen(
    changed: dict[str, tuple[float, float]], ahead: int
) -> None:
    trials = product_trials("U8", "paired", TIERS, ORDERS)
    choices = choose_products(trials, times_of(trials, **changed))
    cold, _ = changed.get(f"at{ahead}", (1.0, 1.0))
    assert choices[0] == Choice(0, "paired", ahead, 1.0, cold)
    assert [choice[1:3] for choice in choices[1:]] == [("paired", DEFAULT_AHEAD)] * 3


def test_a_faster_tier_of_equal_bits_is_chosen() -> None:
    trials = product_trials("U8", "paired", TIERS, ORDERS)
    times = {trial: 0.5 if trial.tier == "narrow" else 1.0 for trial in trials}
    assert {choice.tier for choice in choose_products(trials, times)} == {"narrow"}


def test_what_was_not_measured_is_not_chosen() -> None:
    trials = product_trials("U8", "paired", TIERS, ORDERS)
    assert choose_products(trials, dict.fromkeys(trials, math.inf)) == []
    times = {trial: math.inf if trial.ahead == 4096 else 1.0 for trial in trials}
    assert {choice.ahead for choice in choose_products(trials, times)} == {DEFAULT_AHEAD}


# ---- on this machine ----


@needs_two_orders
def test_a_time_that_was_not_measured_is_named_so() -> None:
    choice = Choice(0, "narrow", DEFAULT_AHEAD, math.inf, 1e-6)
    assert "default" in describe_choices("narrow", [choice])
    choice = Choice(0, "wide", DEFAULT_AHEAD, math.inf, 1.5e-6)
    text = describe_choices("narrow", [choice])
    assert "1.5 µs (wide, not measured by default)" in text


@needs_two_orders
def test_the_measured_order_decides_the_tier_and_is_kept(tmp_path: Path) -> None:
    fma, other = two_orders()
    slow = Plant(**{other: 2.0, fma: 1.0})
    fast = Plant(**{other: 1.0, fma: 2.0})
    path = tmp_path / "new" / "kernels.jsonl"
    file = MeasuredFile(path, "a machine")
    assert measured_tier(file, slow) == fma
    assert measured_tier(None, fast) == other
    file.close()
    never = Plant()
    assert measured_tier(MeasuredFile(path, "a machine"), never) == fma
    assert never.made == []
    assert measured_tier(MeasuredFile(path, "another machine"), fast) == other


@needs_two_orders
def test_an_order_that_nothing_measured_is_not_called_the_fastest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    none = dict.fromkeys(_native.tiers(), math.inf)
    with caplog.at_level("INFO", "octavo.backends.native.measure"):
        measured_tier(None, Plant(**none))
        assert "too busy to measure any" in caplog.messages[-1]
        measured_tier(None, Plant(**{**none, _native.tiers()[-1]: 1.0}))
        assert "the fastest here: " in caplog.messages[-1]


def test_results_take_effect_when_they_are_there_and_are_kept(tmp_path: Path) -> None:
    base = _native.tiers()[-1]
    path = tmp_path / "kernels.jsonl"
    plant = Plant()
    plant.times[Trial(base, "U8", 1, 2048, True)] = 0.5
    file = MeasuredFile(path, "a machine")
    calibration = ProductCalibration(["U8", "BF16", "U8"], base, file, plant)
    calibration.begin(_native.Program(base, _native.Team(1, False)))
    assert not calibration.take()
    assert calibration.choices == {}
    plant.made[0].is_done = True
    assert calibration.take()
    assert calibration.take()
    chosen = calibration.choices
    assert chosen["U8"][0] == Choice(0, base, 2048, 1.0, 0.5)
    assert {choice.ahead for choice in chosen["BF16"]} == {DEFAULT_AHEAD}
    again = ProductCalibration(["U8"], base, MeasuredFile(path, "a machine"), Plant())
    assert again.take()
    assert again.choices == {"U8": chosen["U8"]}
    other = ProductCalibration(["U8"], _native.tiers()[0], MeasuredFile(path, "a machine"), plant)
    assert not other.take()  # another default: what was measured beside the first says nothing


@pytest.mark.parametrize(
    "line",
    [
        b"\xff{]",
        b'{"key": "a machine", "base": "x", "format": "U8", "choices": [[9, "x", 0, 1.0, 1.0]]}',
        b'{"key": "a machine", "base": "x", "format": "U8", "choices": [[0, "x", -1, 1.0, 1.0]]}',
        b'{"key": "a machine", "base": "x", "format": "U8", "choices": [[0, "x", null, 1.0, 1.0]]}',
        b'{"key": "a machine", "base": "x", "format": "U8", "choices": [[0, "x"]]}',
        b'{"key": "a machine", "order": "pairs"}',
        b'{"key": "a machine", "order": "pairs", "seconds": 3}',
        b'["key"]',
        b'{"key": "a machine", "base": "x", "format": "U8", "choi',
        b"[" * 100_000,
        b'{"key": "a machine", "order": "pairs", "seconds": {"x 1": %d}}' % 10**400,
    ],
)
def test_a_damaged_line_is_as_good_as_none(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "kernels.jsonl"
    path.write_bytes(line + b"\n")
    file = MeasuredFile(path, "a machine")
    assert file.order is None
    assert file.all_products() == {}
    file.note_products("x", "U8", [Choice(0, "x", 64, 2.0, 1.0)])
    found = MeasuredFile(path, "a machine", is_kept=False)
    assert found.all_products() == {("x", "U8"): [Choice(0, "x", 64, 2.0, 1.0)]}
    assert found.describe() == [
        "U8 beside x: to 1 rows 1000000.0 µs (64 bytes ahead, 2000000.0 µs by default)"
    ]


def test_choices_that_no_measurement_makes_are_left_out(tmp_path: Path) -> None:
    file = MeasuredFile(tmp_path / "kernels.jsonl", "a machine")
    orders = {"a": "fma", "b": "fma", "c": "pairs"}
    for format_, tier in (("BF16", "c"), ("U8", "c"), ("U4", "gone"), ("F16", "b")):
        file.note_products("a", format_, [Choice(0, tier, 64, 2.0, 1.0)])
    assert [*file.products("a", orders)] == ["U8", "F16"]
    file.note_products("a", "BF16", [Choice(0, "b", 64, 2.0, 1.0)])
    assert "BF16" in file.products("a", orders)


def test_a_file_that_may_only_be_read_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the order of sums, and with it the bits, could differ from start to start."""
    path = tmp_path / "kernels.jsonl"
    MeasuredFile(path, "a machine").note_order("pairs", {})
    before, system = path.read_bytes(), os.open

    def refuse(name: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, "a file system that is only read")
        return system(name, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    file = MeasuredFile(path, "a machine")
    assert file.order == "pairs"
    file.note_order("fma", {})  # kept by this engine alone
    assert path.read_bytes() == before


def test_the_newest_results_of_a_long_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "kernels.jsonl"
    path.write_bytes(b'{"key": "another machine"}\n' * 50_000)
    MeasuredFile(path, "a machine").note_order("pairs", {})
    assert MeasuredFile(path, "a machine").order == "pairs"


def test_a_place_that_cannot_be_written_costs_nothing_but_the_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = MeasuredFile(tmp_path / "file" / "kernels.jsonl", "a machine")
    file.note_order("fma", {})
    assert file.order == "fma"
    missing = tmp_path / "missing"
    assert MeasuredFile(missing, "a machine", is_kept=False).order is None
    assert not missing.exists()


def test_the_key_changes_with_processor_microcode_and_build(tmp_path: Path) -> None:
    info, module = tmp_path / "proc" / "cpuinfo", tmp_path / "module.so"
    info.parent.mkdir()
    keys = set()
    for text in (
        "model name: A\nmicrocode: 0x1\n",
        "model name: A\nmicrocode: 0x2\n",
        "model name: B\n",
    ):
        for build in (b"1", b"22"):
            info.write_text(text)
            module.write_bytes(build)
            keys.add(machine_key(tmp_path, str(module)))
    assert len(keys) == 6


def test_trials_without_time_have_no_result() -> None:
    trials = [
        Trial(tier, "U4K", 1, DEFAULT_AHEAD, is_cold)
        for tier in _native.tiers()
        for is_cold in (True, False)
    ]
    running = native_trials(trials, 0.0)
    with pytest.raises(RuntimeError, match="have not ended"):
        running.best()
    running.run()
    assert running.best() == [math.inf] * len(trials)  # no time, no result


def test_measurements_wait_while_steps_run_and_for_a_while_after_them() -> None:
    activity = _native_test.TestActivity()
    assert activity.is_idle(0.0)
    activity.begin_step()
    assert not activity.is_idle(0.0)
    activity.end_step()
    assert activity.is_idle(0.0)
    assert not activity.is_idle(3600.0)


@needs_two_orders
def test_kernels_of_other_bits_are_refused() -> None:
    fma, other = two_orders()
    program = _native.Program(other, _native.Team(1, False))
    program.choose(_native.Format.U4K, 0, fma, 64)
    with pytest.raises(ValueError, match="order 'fma'"):
        program.choose(_native.Format.BF16, 0, fma, 64)
    with pytest.raises(ValueError, match="order 'fma'"):
        program.choose(_native.Format.F8By128, 0, fma, 64)
    with pytest.raises(ValueError, match="class of rows 4"):
        program.choose(_native.Format.U4K, 4, other, 64)
    with pytest.raises(ValueError, match="never negative"):
        program.choose(_native.Format.U4K, 0, other, -1)


def results(backend: NativeBackend) -> list[Floats]:
    """Return the logits of steps of every class of rows."""
    steps = [make_batch((0, 0, rows)) for rows in (1, 3, 8, 13)]
    return [backend.forward(step).logits.copy() for step in steps]


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_K", "Q8_0"])
def test_a_program_computes_equal_bits_by_all_kernels_that_may_compute_it(
    kind: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path, kind)
    backend = recorded(path)
    expected, format_ = results(backend), KEPT[kind]
    trials = product_trials(format_, backend.tier, _native.tiers(), orders())
    for tier in dict.fromkeys(trial.tier for trial in trials):
        for ahead in DISTANCES:
            for row_class in range(len(ROWS)):
                number = getattr(_native.Format, format_)
                backend._recorded.choose(number, row_class, tier, ahead)
            for got, wanted in zip(results(backend), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_a_backend_measures_once_and_keeps_its_bits(tmp_path: Path) -> None:
    path, kept = write_model(tmp_path, "Q4_K", ffn_down="Q6_K"), tmp_path / "kernels.jsonl"
    backend = recorded(path, measured_file=kept)
    before = results(backend)
    backend.calibrate()
    assert backend._calibration is None
    for got, wanted in zip(results(backend), before, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert backend.choices.keys() == {"U4K", "U6"}
    lines = kept.read_text()
    again = recorded(path, measured_file=kept)
    assert again.arithmetic == backend.arithmetic
    if all(backend.choices.values()):  # on a very slow machine the budget may end before a result
        assert again._calibration is None
        assert again.choices == backend.choices
        assert kept.read_text() == lines


def test_an_instruction_set_that_was_asked_for_computes_everything(tmp_path: Path) -> None:
    path = tmp_path / "kernels.jsonl"
    for tier in _native.tiers():
        backend = make_native(FULL, 160, 16, instruction_set=tier, measured_file=path)
        assert backend.arithmetic == (tier, orders()[tier])
        backend.calibrate()
        assert backend.choices == {}
    assert not path.exists()


def test_an_order_of_sums_can_be_asked_for(tmp_path: Path) -> None:
    for order, tier in tiers_by_order(_native.tiers(), orders()).items():
        path = tmp_path / order
        backend = make_native(FULL, 160, 16, accumulation_order=order, measured_file=path)
        assert backend.arithmetic == (tier, order)
    with pytest.raises(ValueError, match="every processor has fma"):
        choose_tier("", "sideways")
    for order in set(orders().values()) - {orders()["scalar"]}:
        with pytest.raises(ValueError, match="leave one of them out"):
            choose_tier("scalar", order)
