"""A request waits for its own adapter, as long as that takes, and no other request does."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from octavo.adapters.pairs import Limits
from octavo.adapters.read import AdapterReader
from octavo.core.request import Ready, Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.stats import ADAPTER
from octavo.engine import tensor_files
from octavo.engine.adapter_loader import KIND, MAX_OVERTAKEN, AdapterLoader, Bounds, Packed
from octavo.engine.commands import CommandRefusedError
from octavo.engine.own_reader import OwnReader
from octavo.engine.tensor_files import NO_ROOM, UNFIT, TensorFiles
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import TensorMismatchError
from octavo.loader.metadata import Metadata
from octavo.loader_process.connection import TOO_LARGE, TOO_MANY, FileError, TensorFile, Then
from octavo.loader_process.read import OUTSIDE, UNREADABLE
from octavo.wire.commands import LoadedFile
from tests.adapters.made import make_arrays, modules_of, write_adapter
from tests.models.made_up import make_model

SIZE = 100  # bytes of an adapter, packed, unless its name says otherwise


class Reader:
    """A reader whose answers come when a test lets them; of a name, the part that says how."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open: dict[int, tuple[str, Then]] = {}
        self.errors: list[tuple[int, FileError]] = []
        self.most = 16

    def request(
        self, path: str, then: Then, beside: Sequence[str] = (), names: Sequence[str] = ()
    ) -> int:
        if len(self.open) >= self.most:
            raise FileError(TOO_MANY, "too many")
        number = len(self.asked)
        self.asked.append(Path(path).name)
        self.open[number] = path, then
        return number

    def answer(self, name: str | None = None) -> None:
        """Answer the oldest request, or that for a name."""
        number = next(n for n, (path, _) in self.open.items() if name in (None, Path(path).name))
        stored, then = self.open.pop(number)
        path = Path(stored)
        if path.name.startswith("missing"):
            self.errors.append((number, FileError(UNREADABLE, "no such file")))
            return
        checkpoint = Checkpoint(path, {}, Metadata.of_strings(path, {}))
        then(TensorFile(checkpoint, {}, 1000))

    def refuse(self, name: str) -> None:
        """Answer the oldest request for a name with an error."""
        number = next(n for n, (path, _) in self.open.items() if name == Path(path).name)
        del self.open[number]
        self.errors.append((number, FileError(UNREADABLE, "no such file")))

    def take(self) -> list[tuple[int, FileError]]:
        taken, self.errors = self.errors, []
        return taken


class Loader(AdapterLoader):
    """A loader whose adapters are their names, with a size for those that end in one."""

    def prepare(self, label: str, file: TensorFile) -> Packed:
        if label.startswith("unfit"):
            raise TensorMismatchError("a wrong shape", tensor="x")
        size = label.partition("x")[2]
        return Packed(label, int(size or SIZE))


class Rig:
    """A loader of adapters with a reader that waits."""

    def __init__(self, adapters: int = 2, num_bytes: int = 10_000) -> None:
        nothing: Any = None
        self.reader = Reader()
        self.loader = Loader(nothing, nothing, Bounds(adapters, num_bytes), "/adapters")
        self.files = TensorFiles({KIND: self.loader}, self.reader)
        self.loader.attach(self.files)

    def hold(self, name: str, lora: str | None) -> bool:
        """Return whether a new request is held."""
        request = Request(name, array("i", [1]), SamplingParams(max_tokens=1), 0.0, lora=lora)
        held = self.loader.hold(request)
        assert held.holds in ((), (ADAPTER,))
        return bool(held.holds)

    def take(self) -> list[Ready]:
        self.files.take()
        return self.loader.take()

    def load(self, *names: str) -> None:
        """Load adapters for requests that end at once."""
        for name in names:
            assert self.hold(f"first {name}", name)
            self.reader.answer(name.partition("*")[0])
            assert self.take() == [Ready(f"first {name}", ADAPTER)]
            self.loader.leave(f"first {name}")


def test_all_that_wait_for_an_adapter_go_on_when_it_is_loaded() -> None:
    rig = Rig()
    assert not rig.hold("0", None)
    assert rig.hold("1", "a")
    assert rig.hold("2", "b")
    assert rig.hold("3", "a*0.5")
    assert rig.reader.asked == ["a", "b"]
    assert not rig.take()
    rig.reader.answer("a")
    assert rig.take() == [Ready("1", ADAPTER), Ready("3", ADAPTER)]
    assert rig.loader.num_held == 1
    assert rig.loader.find("a") == ("a", 1.0)
    assert rig.loader.find("a*0.5") == ("a", 0.5)
    assert rig.loader.find("b") is None
    assert not rig.hold("4", "a*-2.0"), "it is in memory"


@pytest.mark.parametrize(
    ("name", "is_impossible"), [("unfit", True), ("missing", False), ("bigx20000", True)]
)
def test_one_that_cannot_be_loaded_fails_its_own_requests(name: str, is_impossible: bool) -> None:
    rig = Rig()
    assert rig.hold("1", name)
    assert rig.hold("2", "a")
    assert rig.hold("3", name)
    rig.reader.answer(name)
    failed = rig.take()
    assert [(each.request_id, each.is_impossible) for each in failed] == [
        ("1", is_impossible),
        ("3", is_impossible),
    ]
    assert all(each.error for each in failed)
    rig.reader.answer("a")
    assert rig.take() == [Ready("2", ADAPTER)]
    assert rig.hold("4", name), "it is tried again"
    assert rig.reader.asked == [name, "a", name]


@pytest.mark.parametrize("lora", ["", "../x", "a/b", "a*", "a*nan", "a*x", "*1.0", "a\n"])
def test_an_id_that_is_none_fails_its_request(lora: str) -> None:
    rig = Rig()
    assert rig.hold("1", lora)
    assert not rig.reader.asked
    (ready,) = rig.take()
    assert ready.error
    assert not rig.loader.leave("1")
    assert not rig.loader.num_held


def test_the_one_used_longest_ago_makes_room() -> None:
    rig = Rig(adapters=2)
    rig.load("a", "b")
    assert not rig.hold("1", "a")
    rig.loader.leave("1")
    rig.load("c")
    assert rig.loader.find("b") is None
    assert not rig.hold("2", "a")
    assert not rig.hold("3", "c")


def test_one_that_is_in_use_stays_and_requests_wait_for_room() -> None:
    rig = Rig(adapters=1)
    rig.load("a")
    assert not rig.hold("1", "a")
    assert rig.hold("2", "b")
    assert rig.reader.asked == ["a"]
    assert not rig.take()
    rig.loader.leave("1")
    assert rig.reader.asked == ["a", "b"]
    assert rig.loader.find("a") is None
    rig.reader.answer()
    assert rig.take() == [Ready("2", ADAPTER)]


def test_only_so_many_requests_overtake_one_that_waits_for_room() -> None:
    """A stream of requests for one adapter must not keep another one waiting for ever."""
    rig = Rig(adapters=1)
    rig.load("a")
    assert not rig.hold("first", "a")
    assert rig.hold("waits", "b")
    going = [name for name in map(str, range(2 * MAX_OVERTAKEN)) if not rig.hold(name, "a")]
    assert len(going) == MAX_OVERTAKEN
    for name in ("first", *going):
        assert rig.loader.find("a")
        rig.loader.leave(name)
    assert rig.reader.asked == ["a", "b"]
    rig.reader.answer()
    assert rig.take() == [Ready("waits", ADAPTER)]
    rig.loader.leave("waits")
    rig.reader.answer("a")
    assert len(rig.take()) == MAX_OVERTAKEN, "those behind it go on then"


def test_bytes_are_bounded_by_what_was_loaded() -> None:
    rig = Rig(adapters=10, num_bytes=1000)
    rig.load("ax400", "bx500")
    assert not rig.hold("1", "bx500")
    assert rig.hold("2", "cx600")
    rig.reader.answer()
    assert not rig.take(), "there is no room for it beside what is in use"
    assert rig.reader.asked == ["ax400", "bx500", "cx600"]
    for _ in range(3):
        assert not rig.take()
    assert len(rig.reader.asked) == 3, "it is not read again until there is room"
    rig.loader.leave("1")
    rig.reader.answer()
    assert rig.take() == [Ready("2", ADAPTER)]
    assert rig.loader.find("bx500") is None


def test_one_that_can_be_read_no_more_when_there_is_room_fails() -> None:
    rig = Rig(adapters=10, num_bytes=1000)
    rig.load("ax800")
    assert not rig.hold("1", "ax800")
    assert rig.hold("2", "bx600")
    rig.reader.answer()
    assert not rig.take(), "there is no room"
    rig.loader.leave("1")
    rig.reader.refuse("bx600")
    (failed,) = rig.take()
    assert (failed.request_id, failed.is_impossible) == ("2", False)
    assert "no such file" in str(failed.error)
    assert not rig.reader.open, "it is not tried again"
    assert rig.hold("3", "bx600")
    rig.reader.answer("bx600")
    assert rig.take() == [Ready("3", ADAPTER)]


def outcomes(rig: Rig, name: str, kind: str = KIND) -> list[str]:
    """Load an adapter as a command does; return the codes of errors, or nothing."""
    codes: list[str] = []
    rig.files.load(
        kind,
        name,
        f"/adapters/{name}",
        lambda outcome: codes.append(getattr(outcome, "code", "")),
    )
    rig.reader.answer(name)
    rig.files.take()
    return codes


def test_a_command_loads_the_same_adapters() -> None:
    rig = Rig(adapters=2)
    assert outcomes(rig, "a") == [""]
    assert not rig.hold("1", "a"), "it was loaded beforehand"
    assert outcomes(rig, "unfit") == [UNFIT]
    assert outcomes(rig, "bigx20000") == [TOO_LARGE]
    assert outcomes(rig, "b") == [""]
    assert not rig.hold("2", "b")
    assert outcomes(rig, "c") == [NO_ROOM]
    assert rig.hold("3", "c")
    rig.loader.leave("2")
    assert outcomes(rig, "c") == [""], "it joins the request's"
    assert rig.take() == [Ready("3", ADAPTER)]


def test_the_sizes_of_files_bound_no_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is given up when its adapter is packed; those used longest ago make room."""
    monkeypatch.setattr(tensor_files, "MAX_BYTES", 1500)  # a file has 1000
    monkeypatch.setattr(tensor_files, "MAX_FILES", 2)
    rig = Rig(adapters=3)
    rig.load("a", "b", "c")
    assert not rig.hold("1", "a")
    assert outcomes(rig, "d") == [""]
    rig.load("e")
    assert [name for name in "abcde" if rig.loader.find(name)] == ["a", "d", "e"]


class Kept(Loader):
    """A kind that does not bound its files."""

    bounds_itself = False


def test_the_files_of_other_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, nothing = Rig(adapters=10), cast(Any, None)
    kept = Kept(nothing, nothing, Bounds(10, 10_000), "/files")
    rig.files = TensorFiles({KIND: rig.loader, "kept": kept}, rig.reader)
    for loader in (rig.loader, kept):
        loader.attach(rig.files)
    rig.load("a", "b")
    monkeypatch.setattr(tensor_files, "MAX_BYTES", 1500)
    assert outcomes(rig, "c", "kept") == [""], "those of adapters do not count"
    assert outcomes(rig, "d", "kept") == [NO_ROOM]
    monkeypatch.setattr(tensor_files, "MAX_FILES", 1)
    with pytest.raises(CommandRefusedError) as caught:
        outcomes(rig, "e", "kept")
    assert caught.value.code == NO_ROOM
    assert outcomes(rig, "f") == [""]


def test_one_that_is_unloaded_stays_until_its_requests_have_ended() -> None:
    rig = Rig()
    rig.load("a", "b")
    assert not rig.hold("1", "a")
    rig.files.give_up(KIND, "a")
    rig.files.give_up(KIND, "b")
    assert rig.loader.find("a") == ("a", 1.0)
    assert rig.loader.find("b") is None
    rig.loader.leave("1")
    assert rig.loader.find("a") is None
    assert rig.hold("2", "a")


def test_a_request_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    rig = Rig(adapters=1)
    assert rig.hold("1", "a")
    assert rig.hold("2", "b")
    assert rig.loader.leave("1")
    assert rig.loader.leave("2")
    assert not rig.loader.leave("2")
    assert not rig.loader.num_held
    rig.reader.answer("a")
    assert not rig.take()
    assert rig.reader.asked == ["a"]
    assert not rig.hold("3", "a"), "it is in memory, since its loading had begun"


def test_requests_wait_while_the_loader_is_busy() -> None:
    rig = Rig(adapters=10)
    rig.reader.most = 1
    assert rig.hold("1", "a")
    assert rig.hold("2", "b")
    assert rig.reader.asked == ["a"]
    rig.reader.answer()
    assert rig.take() == [Ready("1", ADAPTER)]
    rig.reader.answer("b")
    assert rig.take() == [Ready("2", ADAPTER)]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_every_request_goes_on_or_fails(seed: int) -> None:
    """Bounds hold, what is in use is in memory, and nothing waits for ever."""
    chance = random.Random(seed)
    bounds = chance.randrange(1, 4), chance.choice([250, 700, 10_000])
    rig, running, waiting = Rig(*bounds), dict[str, str](), dict[str, str]()
    names = ["a", "b", "cx200", "d*0.5", "unfit", "missing", "ex300"]

    def take() -> None:
        for ready in rig.take():
            name = waiting.pop(ready.request_id)
            if ready.error is None:
                running[ready.request_id] = name
            else:
                rig.loader.leave(ready.request_id)

    def check() -> None:
        packed = rig.loader._packed
        assert len(packed) <= bounds[0]
        assert sum(each.num_bytes for each in packed.values()) <= bounds[1]
        assert all(rig.loader.find(name) for name in running.values())
        assert rig.loader.num_held == len(waiting)

    def act(number: int) -> None:
        match chance.randrange(6):
            case 0 | 1:
                name = chance.choice(names)
                place = waiting if rig.hold(f"{number}", name) else running
                place[f"{number}"] = name
            case 2 if running:
                rig.loader.leave(name := chance.choice([*running]))
                del running[name]
            case 3 if waiting:
                rig.loader.leave(name := chance.choice([*waiting]))
                del waiting[name]
            case 4 if rig.reader.open:
                path, _ = chance.choice([*rig.reader.open.values()])
                rig.reader.answer(Path(path).name)
            case 5 if rig.loader._packed:
                name = chance.choice([*rig.loader._packed])
                if name not in rig.loader._given_up:
                    rig.files.give_up(KIND, name)

    for number in range(300):
        act(number)
        take()
        check()
    for _ in range(1000):  # everything runs to its end
        for name in [*running]:
            rig.loader.leave(name)
            del running[name]
        if rig.reader.open:
            rig.reader.answer()
        take()
        check()
    assert not waiting
    assert not rig.loader.num_held
    loader = rig.loader
    kept = loader._queue, loader._loading, loader._waiting, loader._pins, loader._digests
    assert not any(map(len, (*kept, loader._needed, loader._overtaken)))


class Value:
    """An adapter in the form of a backend of these tests."""

    num_bytes = 8


def test_an_engine_in_this_process_reads_below_the_directory_alone(tmp_path: Path) -> None:
    model = make_model("LlamaForCausalLM")
    modules = list(modules_of(model))
    write_adapter(tmp_path / "adapters/right", make_arrays(modules))
    wrong = make_arrays(modules)
    wrong[next(iter(wrong))][0, 0] = np.nan
    write_adapter(tmp_path / "adapters/wrong", wrong)
    write_adapter(tmp_path / "outside", make_arrays(modules))
    (tmp_path / "adapters/pickled").mkdir()
    (tmp_path / "adapters/pickled/adapter_model.bin").write_bytes(b"x")
    reader = AdapterReader(model, Limits(16))
    directory = tmp_path / "adapters"
    loader = AdapterLoader(reader, lambda weights: Value(), Bounds(4, 1000), str(directory))
    files = TensorFiles({KIND: loader}, OwnReader([directory]))
    loader.attach(files)

    def load(path: Path) -> LoadedFile | CommandRefusedError:
        outcomes: list[LoadedFile | CommandRefusedError] = []
        files.load(KIND, path.name, str(path), outcomes.append)
        while not outcomes:
            time.sleep(0.001)
            files.take()
        return outcomes[0]

    loaded = load(directory / "right")
    assert isinstance(loaded, LoadedFile)
    assert loaded.num_tensors == 2 * len(modules)
    assert isinstance(loader.find("right"), tuple)
    cases = {
        directory / "wrong": UNFIT,
        directory / "absent": UNREADABLE,
        directory / "pickled": UNREADABLE,
        tmp_path / "outside": OUTSIDE,
    }
    for path, code in cases.items():
        outcome = load(path)
        assert isinstance(outcome, CommandRefusedError)
        assert outcome.code == code
