"""The garbage collector is restored after loading, also after an error."""

import contextlib
import gc
from collections.abc import Iterator

import pytest

from octavo.observe import collection
from octavo.observe.collection import no_collection


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_restored(is_on: bool) -> None:
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        with contextlib.suppress(KeyError), no_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()


@pytest.fixture
def _nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(collection, "_has_frozen", False)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("_nothing_frozen")
def test_objects_of_the_block_are_not_looked_through_by_the_next_collection() -> None:
    was_on = gc.isenabled()
    gc.enable()
    try:
        with no_collection():
            made: list[list[int]] = [[] for _ in range(2 * gc.get_threshold()[0])]
        young = gc.get_objects(generation=0)
        assert not any(each is made for each in young)
        assert any(each is made for each in gc.get_objects(generation=2))
    finally:
        (gc.enable if was_on else gc.disable)()


def test_frozen_objects_stay_frozen() -> None:
    collection.freeze()
    before = gc.get_freeze_count()
    with no_collection():
        pass
    assert 0 < gc.get_freeze_count() <= before  # what other tests left may be freed meanwhile
