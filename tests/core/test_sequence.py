"""A sequence: known tokens, and how far their KV is computed."""

from typing import Any

from octavo.core.sequence import NO_SLOT, Sequence, Status
from tests.core.make import a_line, request


def sequence(prompt: int = 5, **fields: Any) -> Sequence:
    """Return a sequence that has just been added."""
    made = request("a", prompt, **fields)
    return Sequence(made, (0, 0.0, 1), made.max_total, 0.0, a_line())


def test_a_new_sequence_knows_its_prompt_and_has_computed_nothing() -> None:
    new = sequence(5)
    assert (len(new.tokens), new.num_prompt, new.num_expected) == (5, 5, 5)
    assert (new.num_computed, new.num_planned, new.slot) == (0, 0, NO_SLOT)
    assert (new.status, new.in_flight, new.catching_up) == (Status.WAITING, False, True)


def test_emitted_tokens_are_known_and_not_part_of_the_prompt() -> None:
    resumed = sequence(5, emitted=[7, 8])
    assert list(resumed.tokens)[5:] == [7, 8]
    assert (resumed.num_prompt, resumed.num_expected) == (5, 7)


def test_stop_tokens_and_eos_tokens_end_a_sequence_unless_eos_is_ignored() -> None:
    fields: dict[str, Any] = {"eos_token_ids": (1, 2), "stop_token_ids": (3,)}
    assert sequence(**fields).stop_ids == {1, 2, 3}
    assert sequence(**fields, ignore_eos=True).stop_ids == {3}


def test_a_sequence_is_in_flight_while_it_computes_or_samples() -> None:
    computing = sequence(5)
    computing.num_planned = 2
    assert computing.in_flight
    sampling = sequence(5)
    sampling.num_expected = 6
    assert sampling.in_flight


def test_rewinding_keeps_the_tokens_and_nothing_else() -> None:
    moved = sequence(5)
    moved.tokens.extend([7, 8])
    moved.slot, moved.num_computed, moved.num_planned, moved.num_expected = 3, 6, 9, 8
    moved.catching_up, moved.drafts, moved.verifying = False, (1,), (2, 3)
    moved.rewind()
    assert (moved.slot, moved.num_computed, moved.num_planned) == (NO_SLOT, 0, 0)
    assert (moved.num_expected, moved.catching_up) == (7, True)
    assert not moved.drafts
    assert not moved.verifying
