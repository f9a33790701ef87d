"""Which models leave: the idle ones first, the oldest first, and none in vain."""

from __future__ import annotations

import random

from octavo.server.models.memory import Held, Need, Room, leaving


def need(num_bytes: int) -> Need:
    return Need(num_bytes, 1, 1)


def test_none_leaves_where_there_is_room() -> None:
    assert leaving(Room(100, 4), need(60), [Held(40, 0.0, False)]) == []


def test_the_one_that_was_used_longest_ago_leaves() -> None:
    loaded = [Held(40, 3.0, False), Held(40, 1.0, False), Held(20, 2.0, False)]
    assert leaving(Room(100, 4), need(30), loaded) == [1]


def test_the_number_of_models_is_a_limit_too() -> None:
    assert leaving(Room(100, 2), need(1), [Held(1, 2.0, False), Held(1, 1.0, False)]) == [1]


def test_idle_ones_leave_before_busy_ones() -> None:
    assert leaving(Room(100, 4), need(50), [Held(50, 1.0, True), Held(50, 2.0, False)]) == [1]


def test_one_that_is_too_small_to_help_stays() -> None:
    loaded = [Held(10, 1.0, False), Held(90, 2.0, False)]
    assert leaving(Room(100, 4), need(80), loaded) == [1]


def test_what_leaves_suffices_and_is_needed() -> None:
    """The rest of random models has room, and would not if one of the leaving stayed."""
    for seed in range(300):
        chance = random.Random(seed)
        room = Room(chance.randint(1, 50), chance.randint(1, 4))
        loaded = [
            Held(chance.randint(0, 20), chance.random(), chance.random() < 0.5) for _ in range(4)
        ]
        wanted = need(chance.randint(0, room.num_bytes))
        gone = leaving(room, wanted, loaded)

        def fits(stay: list[int], room: Room = room, wanted: Need = wanted) -> bool:
            taken = wanted.num_bytes + sum(loaded[at].num_bytes for at in stay)  # noqa: B023
            return taken <= room.num_bytes and len(stay) < room.most

        rest = [at for at in range(4) if at not in gone]
        assert fits(rest)
        assert not any(fits([*rest, at]) for at in gone)
