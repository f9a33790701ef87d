"""Garbage is looked for again when loading is over, however it ended, if it was before."""

import contextlib
import gc

import pytest

from octavo.observe.collection import no_collection


@pytest.mark.parametrize("is_on", [True, False])
def test_it_is_as_it_was(is_on: bool) -> None:
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        with contextlib.suppress(KeyError), no_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()
