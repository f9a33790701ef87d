"""The log of the prefix cache: what enters and leaves it is noted, in order, with its tokens."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from octavo.core.config import KVGroup
from octavo.core.kv import cache_log
from octavo.core.kv.cache_log import Cleared, Removed, Stored
from octavo.core.kv.manager import KVManager
from octavo.core.request import EncoderInput
from octavo.core.sequence import Sequence
from tests.core.kv.test_kv_manager import sequence
from tests.core.make import KEY, config, tokens


def manager(**settings: Any) -> KVManager:
    return KVManager(config(logs_cache=True, **settings), KEY)


def computed(kv: KVManager, name: str, count: int, family: int = 1, **fields: Any) -> Sequence:
    """Return a sequence whose prompt has been computed, and is in the cache."""
    one = sequence(name, tokens(count, family), **fields)
    assert kv.adopt(one, kv.match(one), count) is not None
    one.num_computed = one.num_planned = count
    kv.commit(one)
    return one


def notes(kv: KVManager) -> list[cache_log.Note]:
    assert kv.log is not None
    return kv.log.take()


def as_bytes(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def test_blocks_are_noted_once_with_their_tokens_and_what_is_before_them() -> None:
    kv = manager()
    one = computed(kv, "one", 10)
    first = Stored(0, tuple(one.digests), None, as_bytes(tokens(8)), None, ())
    assert notes(kv) == [first]
    other = computed(kv, "other", 14)
    parent = other.digests[1]
    assert notes(kv) == [
        Stored(0, (other.digests[2],), parent, as_bytes(tokens(14)[8:12]), None, ())
    ]
    assert notes(kv) == []


def test_a_block_that_is_taken_again_is_noted_before_what_takes_its_place() -> None:
    kv = manager(num_blocks=4)
    one = computed(kv, "one", 8)
    kv.release(one)
    notes(kv)
    other = computed(kv, "other", 12, family=9)
    seen = notes(kv)
    assert [type(each) for each in seen] == [Removed, Removed, Stored]
    assert {each.digest for each in seen if isinstance(each, Removed)} == {*one.digests}
    assert isinstance(seen[-1], Stored)
    assert seen[-1].digests == tuple(other.digests)


@pytest.mark.parametrize("sizes", [(1,), (1, 2)])
def test_what_may_be_wrong_and_what_is_reset_leaves(sizes: tuple[int, ...]) -> None:
    groups = tuple(KVGroup(block_bytes=size) for size in sizes)
    kv = manager(groups=groups)
    one = computed(kv, "one", 8)
    notes(kv)
    kv.release(one, forget=True)
    left = [Removed(group, each) for group in range(len(sizes)) for each in one.digests]
    assert notes(kv) == left
    kv.release(computed(kv, "other", 8))
    kv.reset_cache()
    assert notes(kv) == [Cleared()], "nothing before it says anything any more"


def test_long_runs_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_log, "MOST_TOKENS", 8)
    kv = manager()
    one = computed(kv, "one", 20)
    seen = notes(kv)
    assert [len(each.digests) for each in seen if isinstance(each, Stored)] == [2, 2, 1]
    parents = [each.parent for each in seen if isinstance(each, Stored)]
    assert parents == [None, one.digests[1], one.digests[3]]


def test_adapter_scope_and_salts_are_named() -> None:
    kv = manager()
    fields: dict[str, Any] = {"lora": "french", "cache_scope": "tenant", "salts": ((5, b"cat"),)}
    one = computed(kv, "one", 12, **fields)
    (seen,) = notes(kv)
    assert isinstance(seen, Stored)
    assert seen.lora == "french"
    assert seen.keys == ((kv.digests.root(one.request),), (b"cat",), ())
    assert b"tenant" not in seen.keys[0][0], "the scope itself is not shown"


def test_a_window_notes_what_it_has_kept_and_an_encoder_nothing() -> None:
    kv = manager(groups=(KVGroup(window=4), KVGroup(kind="cross")))
    one = computed(kv, "one", 8, encoder=EncoderInput(5, b"a picture"))
    seen = notes(kv)
    assert {each.group for each in seen if isinstance(each, Stored)} == {0}
    kv.release(one, forget=True)
    assert all(isinstance(each, Removed) and each.group == 0 for each in notes(kv))


def test_runs_end_where_a_block_is_not_new() -> None:
    kv = manager(groups=(KVGroup(), KVGroup(kind="state", checkpoint_blocks=2)))
    one = computed(kv, "one", 16)
    stored = [each for each in notes(kv) if isinstance(each, Stored)]
    states = [each.digests for each in stored if each.group == 1]
    assert states == [(one.digests[1],), (one.digests[3],)]


def test_without_a_reader_or_a_cache_there_is_no_log() -> None:
    assert KVManager(config(), KEY).log is None
    assert manager(prefix_caching=False).log is None
