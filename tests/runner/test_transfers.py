"""Blocks are saved and loaded as plans ask for it, by the worker and by both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.base import LogitsBackend
from octavo.backends.step import NO_ROWS, Draws, batch_of_copies
from octavo.core.plan import BlockTransfer
from tests.runner.host_store import HostStore
from tests.runner.plans import make_plan, make_runner
from tests.runner.tiny import (
    FULL,
    Engine,
    Windows,
    make_backend,
    make_config,
    make_request,
    tokens_of,
)

PROMPT = [n * n % 53 for n in range(70)]
OTHER = [n * 7 % 59 for n in range(107)]
NO_DRAWS = Draws((), (), NO_ROWS, NO_ROWS)


def make(name: str, windows: Windows, num_blocks: int, block_size: int) -> Any:
    if name == "torch":
        pytest.importorskip("torch")
        return make_backend(windows, num_blocks, block_size)
    from tests.backends.native.tiny import make_native

    return make_native(windows, num_blocks, block_size)


@pytest.mark.parametrize("windows", [FULL, (None, 24)])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_text_goes_on_from_blocks_that_were_saved_evicted_and_loaded(
    backend: str, windows: Windows
) -> None:
    """Whole blocks of the prompt come from the store, and every token is the same."""

    def engine(store: HostStore | None) -> Engine:
        def made(windows: Windows, num_blocks: int, block_size: int) -> LogitsBackend:
            return make(backend, windows, num_blocks, block_size)

        pages = 1 + 8 * len(make_config(windows).groups)  # as the longer text needs
        return Engine(
            windows, make=made, store=store, num_blocks=pages, block_size=16, max_num_seqs=2
        )

    def answer(engine: Engine, name: str, prompt: list[int], emitted: list[int]) -> list[int]:
        request = make_request(name, prompt, emitted=emitted, max_tokens=20, ignore_eos=True)
        return tokens_of(engine.answer(request)[name])

    alone = answer(engine(None), "alone", PROMPT, [])
    store = HostStore()
    first = engine(store)
    assert answer(first, "first", PROMPT, []) == alone
    answer(first, "evicts", OTHER, [])
    stats = first.core.scheduler.stats
    before = store.num_loaded, stats.num_cached_tokens
    assert answer(first, "again", PROMPT, alone[:7]) == alone[7:]
    assert store.num_loaded > before[0]
    assert stats.num_cached_tokens - before[1] == 64
    next_one = engine(store)  # which has nothing of its own
    assert answer(next_one, "next", PROMPT, alone[:7]) == alone[7:]
    assert next_one.core.scheduler.stats.num_cached_tokens == 64


def test_a_step_saves_before_it_copies_and_loads_after_it() -> None:
    for name in ("torch", "native"):
        backend = make(name, FULL, 4, 16)
        size = backend.block_bytes(0)
        contents = [np.full(size, value, np.uint8) for value in (1, 2)]

        def run(backend: Any = backend, **parts: Any) -> tuple[np.ndarray, ...]:
            batch = batch_of_copies(parts.pop("copies", ()))._replace(**parts)
            return backend.step(batch, NO_DRAWS).collect().saved

        run(loads=((1, 0, contents[0]),))
        (saved,) = run(copies=((1, 2, 0),), saves=((2, 0),), loads=((1, 0, contents[1]),))
        np.testing.assert_array_equal(saved, np.zeros(size, np.uint8))
        for saved, content in zip(run(saves=((1, 0), (2, 0))), contents[::-1], strict=True):
            np.testing.assert_array_equal(saved, content)


@pytest.mark.parametrize("name", ["torch", "native"])
def test_content_of_another_size_is_refused(name: str) -> None:
    backend = make(name, FULL, 4, 16)
    content = np.zeros(backend.block_bytes(0) - 1, np.uint8)
    batch = batch_of_copies(())._replace(loads=((1, 0, content),))
    with pytest.raises(ValueError, match="cannot be loaded"):
        backend.step(batch, NO_DRAWS).collect()


def test_a_block_is_not_kept_if_it_was_forgotten_while_its_step_ran() -> None:
    store = HostStore()
    runner, stub = make_runner(store=store)
    save = BlockTransfer(1, 0, 3, b"a"), BlockTransfer(2, 0, 4, b"b")
    stub.saved = (np.zeros(64, np.uint8), np.ones(64, np.uint8))
    started = runner.submit(make_plan(step=0, saves=save))
    assert stub.submitted[-1].saves == ((3, 0), (4, 0))
    store.forget(0, b"a")
    started.collect()
    assert not store.has(0, b"a")
    assert store.blocks[0, b"b"].all()


def test_loads_end_when_their_content_comes_or_is_lost_or_damaged() -> None:
    store = HostStore()
    runner, stub = make_runner(store=store)
    store.blocks[0, b"here"] = np.ones(64, np.uint8)
    store.blocks[0, b"damaged"] = np.ones(63, np.uint8)
    loads = [BlockTransfer(n, 0, n, d) for n, d in enumerate((b"here", b"lost", b"damaged"), 1)]
    result = runner.submit(make_plan(step=0, loads=tuple(loads))).collect()
    assert result.loaded == ((1, True), (2, False), (3, False))
    assert [place[:2] for place in stub.submitted[-1].loads] == [(1, 0)]
    store.num_calls = 1
    assert (
        not runner.submit(make_plan(step=1, loads=(BlockTransfer(4, 0, 9, b"here"),)))
        .collect()
        .loaded
    )
    assert runner.submit(make_plan(step=2)).collect().loaded == ((4, True),)
    assert [place[:2] for place in stub.submitted[-1].loads] == [(9, 0)]


def test_a_runner_without_a_store_refuses_transfers() -> None:
    runner, _ = make_runner()
    with pytest.raises(ValueError, match="no store"):
        runner.submit(make_plan(step=0, saves=(BlockTransfer(1, 0, 3, b"a"),)))
