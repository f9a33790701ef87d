"""Torch uses one thread, as in the tests of the reference."""

from __future__ import annotations

from tests.backends.torch.conftest import one_thread as one_thread
