"""States: checkpoints at block ends, and the state at which a sequence stands."""

from __future__ import annotations

from octavo.core.config import KVGroup
from octavo.core.kv.block_pool import NULL_BLOCK
from octavo.core.kv.manager import KVManager
from octavo.core.sequence import Sequence, Status
from tests.core.make import KEY, a_line, config, request, tokens

STATE = KVGroup(kind="state", checkpoint_blocks=2)


def sequence(request_id: str, prompt: list[int]) -> Sequence:
    made = request(request_id, prompt)
    return Sequence(made, (0, 0.0, 0), made.max_total, 0.0, a_line())


def computed(kv: KVManager, request_id: str, count: int) -> Sequence:
    """Return a running sequence whose prompt is computed."""
    one = sequence(request_id, tokens(count))
    assert kv.adopt(one, kv.match(one), count) is not None
    one.status = Status.RUNNING
    one.num_computed = one.num_planned = count
    kv.commit(one)
    return one


def test_blocks_are_taken_for_checkpoints_and_for_the_last_state() -> None:
    kv = KVManager(config(groups=(STATE,)), KEY)
    one = computed(kv, "one", 18)
    assert one.tables == ([0, 1, 0, 2, 3],)


def test_a_prefix_ends_at_a_checkpoint() -> None:
    kv = KVManager(config(groups=(STATE,)), KEY)
    computed(kv, "one", 18)
    assert kv.match(sequence("two", tokens(15))).num_tokens == 8
    prefix = kv.match(sequence("three", tokens(17)))
    assert (prefix.num_tokens, prefix.tables) == (16, ([0, 0, 0, 2],))


def test_a_fork_copies_the_state_only_where_its_parent_stands() -> None:
    kv = KVManager(config(groups=(STATE,), prefix_caching=False), KEY)
    parent = computed(kv, "parent", 18)
    fork = sequence("fork", [*tokens(18), 5])
    assert kv.match(fork, parent, is_settled=True).num_tokens == 18
    assert kv.match(fork, parent, is_settled=False).num_tokens == 16
    early = sequence("early", [*tokens(17), 5])
    assert kv.match(early, parent, is_settled=True).num_tokens == 16


def test_a_copied_state_has_a_block_even_if_the_next_chunk_leaves_it() -> None:
    kv = KVManager(config(groups=(STATE,), prefix_caching=False), KEY)
    parent = computed(kv, "parent", 18)
    fork = sequence("fork", [*tokens(18), *tokens(10, 5)])
    copies = kv.adopt(fork, kv.match(fork, parent, is_settled=True), 28)
    assert copies == ((parent.tables[0][4], fork.tables[0][4], 0),)
    assert fork.tables[0][4] != NULL_BLOCK
