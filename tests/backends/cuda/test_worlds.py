"""The simulator's worlds with the real runner over the fake device."""

from __future__ import annotations

from functools import partial

import pytest

from octavo.models.llama import Llama
from tests.backends.cuda.on_fake import make_backend, make_capturing
from tests.runner.test_worlds import run_world
from tests.runner.tiny import Family, Mixed, convolving, latent, make_groups

FAMILIES: dict[str, Family] = {
    "llama": Llama,
    "mixed": Mixed,
    "latent": latent,
    "convolving": convolving,
}


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", FAMILIES)
def test_worlds_hold_on_the_device(name: str, seed: int) -> None:
    """Chunks, preemptions, cached prefixes, drafts, masks and stores of KV change no output.

    The expected output of a request is that of a pass over it alone, on a device of its own. Each
    step refuses to wait.
    """
    family = FAMILIES[name]
    makes = partial(make_backend, family=family), partial(make_groups, family=family)
    run_world(seed, *makes, store="bad" if seed % 2 else None)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(20, 40))
@pytest.mark.parametrize("name", FAMILIES)
def test_worlds_hold_while_graphs_are_replayed(name: str, seed: int) -> None:
    """Decode steps are captured in the middle of a world, and replayed whatever changes meanwhile.

    The expected output is that of passes of the host's operations one by one.
    """
    family = FAMILIES[name]
    makes = partial(make_capturing, family=family), partial(make_groups, family=family)
    run_world(seed, *makes, store="bad" if seed % 2 else None)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(40, 50))
@pytest.mark.parametrize("name", FAMILIES)
def test_worlds_hold_with_keys_and_values_of_eight_bits(name: str, seed: int) -> None:
    """A block has the same bytes, scales too, however its tokens were computed."""
    family = FAMILIES[name]
    makes = (
        partial(make_backend, family=family, has_short_kv=True),
        partial(make_groups, family=family, kv_dtype="torch fp8"),
    )
    run_world(seed, *makes, store="bad" if seed % 2 else None)
