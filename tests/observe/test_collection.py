"""The garbage collector is restored after loading, also after an error."""

import contextlib
import gc

import pytest

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
