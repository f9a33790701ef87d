"""The invariants of a pool of pages, broken on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo.core.check import check_integrity
from octavo.core.config import KVGroup
from octavo.core.kv.check import IntegrityError
from octavo.core.kv.page_pool import PagePool
from octavo.core.request import EncoderInput
from octavo.core.scheduler import Scheduler
from tests.core.make import Rig, tokens

GROUPS = (KVGroup(block_bytes=1), KVGroup(window=6, block_bytes=3))


def healthy() -> Scheduler:
    """Return a scheduler in which "a" and "b" decode, and share pages of three small blocks."""
    rig = Rig(groups=GROUPS, num_blocks=30)
    rig.add("over", tokens(5, 9), max_tokens=1)
    rig.step()
    rig.add("a", [*tokens(9), 1])
    rig.step()
    rig.add("b", [*tokens(9), 2])
    rig.step()
    rig.step()
    assert rig.running == ["a", "b"]
    return rig.scheduler


def pages(scheduler: Scheduler) -> PagePool:
    """Return the pool, which is one of pages."""
    assert isinstance(scheduler.kv.pool, PagePool)
    return scheduler.kv.pool


def page_of_a(scheduler: Scheduler) -> int:
    """Return the page of the first block of "a"."""
    return scheduler.sequences["a"].tables[0][0] // 3


def use_the_null_page(scheduler: Scheduler) -> None:
    scheduler.sequences["a"].tables[0][0] = 2


def free_twice(scheduler: Scheduler) -> None:
    pool = pages(scheduler)
    pool._idle_pages[next(iter(pool._empty_pages))] = None


def free_in_use(scheduler: Scheduler) -> None:
    pages(scheduler)._empty_pages[page_of_a(scheduler)] = None


def lose_a_page(scheduler: Scheduler) -> None:
    pages(scheduler)._empty_pages.popitem()


def change_the_owner(scheduler: Scheduler) -> None:
    pages(scheduler).owners[page_of_a(scheduler)] = 1


def count_wrongly(scheduler: Scheduler) -> None:
    pages(scheduler).ref_counts[0][scheduler.sequences["a"].tables[0][0]] = 5


def lose_a_block(scheduler: Scheduler) -> None:
    for spare in pages(scheduler)._spare:
        spare.clear()


def free_a_block_twice(scheduler: Scheduler) -> None:
    pool = pages(scheduler)
    pool._cached[0][pool.free_blocks_of(0)[0][0]] = None


def free_a_block_in_use(scheduler: Scheduler) -> None:
    pages(scheduler)._cached[0][scheduler.sequences["a"].tables[0][0]] = None


def label_a_spare_block(scheduler: Scheduler) -> None:
    pool = pages(scheduler)
    pool.labels[0][pool.free_blocks_of(0)[0][0]] = (0, b"label")


def count_blocks_wrongly(scheduler: Scheduler) -> None:
    pages(scheduler).num_held[page_of_a(scheduler)] = 9


def change_the_encoder(scheduler: Scheduler) -> None:
    one = scheduler.sequences["b"]
    one.request = replace(one.request, encoder=EncoderInput(5, b"other"))


def change_the_salts(scheduler: Scheduler) -> None:
    one = scheduler.sequences["b"]
    one.request = replace(one.request, salts=((0, b"cat"),))


PAGES: list[tuple[str, Callable[[Scheduler], None]]] = [
    ("the null page is in use", use_the_null_page),
    ("a page is free twice", free_twice),
    ("a page in use is free", free_in_use),
    ("pages are lost", lose_a_page),
    ("page 3 is used by groups [0]", change_the_owner),
    ("block 9 of group 0: reference count 5, 2 holders", count_wrongly),
    ("blocks [22, 23] of group 0 are lost", lose_a_block),
    ("a block of group 0 is free twice", free_a_block_twice),
    ("free blocks of group 0 are in use", free_a_block_in_use),
    ("free block 22 of group 0 is in the wrong list", label_a_spare_block),
    ("page 3: 3 blocks in use", count_blocks_wrongly),
    ("block 9 is shared between encoder inputs", change_the_encoder),
    ("block 9 is shared after different tokens", change_the_salts),
]


def test_a_healthy_core_passes() -> None:
    check_integrity(healthy())


@pytest.mark.parametrize(("message", "sabotage"), PAGES, ids=[message for message, _ in PAGES])
def test_a_broken_invariant_is_found(message: str, sabotage: Callable[[Scheduler], None]) -> None:
    scheduler = healthy()
    sabotage(scheduler)
    with pytest.raises(IntegrityError, match=re.escape(message)):
        check_integrity(scheduler)
