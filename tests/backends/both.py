"""Both backends as exact as they are, for tests that hold for either."""

from __future__ import annotations

from collections.abc import Callable

from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.torch.backend import TorchBackend
from tests.backends.native.tiny import EXACT

AnyBackend = NativeBackend | TorchBackend
New = Callable[[], AnyBackend]
BACKENDS: dict[str, New] = {
    "torch": TorchBackend,
    "native": lambda: NativeBackend(NativeOptions(**EXACT, num_threads=2)),
}
