"""Compares how several engines name the same KV: equal content has equal digests in all of them."""

from __future__ import annotations

from octavo.core.engine import EngineCore
from tests.sim.kv.memory import require

Content = tuple[object, ...]


class DigestOracle:
    """The content that each digest stands for, of all engines."""

    def __init__(self) -> None:
        self._names: dict[Content, bytes] = {}
        self._contents: dict[bytes, Content] = {}
        self.num_agreed = 0  # names that another engine had given too
        self._givers: dict[bytes, EngineCore] = {}

    def look(self, core: EngineCore) -> None:
        """Compare the digests of all sequences of an engine with those of the others."""
        scheduler = core.scheduler
        size = scheduler.config.block_size
        for sequence in scheduler.sequences.values():
            request = sequence.request
            for index, digest in enumerate(sequence.digests):
                tokens = tuple(sequence.tokens[: (index + 1) * size])
                content = (sequence.cache_epoch, request.cache_scope, request.lora, tokens)
                name = self._names.setdefault(content, digest)
                require(name == digest, f"two names of the KV of {tokens}")
                stands_for = self._contents.setdefault(digest, content)
                require(stands_for == content, f"KV of {tokens} has the name of {stands_for}")
                self.num_agreed += self._givers.setdefault(digest, core) is not core
