"""Prompt workers that outlive a test's server, so that few tests wait for a new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from octavo.workers import pool as worker_pool
from octavo.workers.jobs import Duty
from octavo.workers.process import Worker, WorkerLimits

# Most tests have a model of their own, so that more workers would never be used again.
MOST_KEPT = 16

Key = tuple[str, float, float, float, Duty]


class KeptWorker(Worker):
    """A real worker; a server that ends leaves it to the next one if it is idle."""

    kept: ClassVar[list[KeptWorker]] = []  # the one kept last is the last
    key: Key | None = None

    @property
    def is_idle(self) -> bool:
        """True while it could do another server's jobs."""
        has_ended = self.ended.done() and not self.ended.cancelled()  # cancelled: with the server
        return bool(self.key and self._is_ready and not self.jobs and not has_ended)

    @classmethod
    def launch(cls, limits: WorkerLimits, path: str, duty: Duty = "prompts") -> KeptWorker:
        """Return an idle worker of the same tokenizer and limits, or start one."""
        key = (path, limits.template_seconds, limits.tokenize_seconds, limits.shape_seconds, duty)
        for worker in reversed(cls.kept):
            if worker.key == key:
                cls.kept.remove(worker)
                return worker
        self = super().launch(limits, path, duty)
        assert isinstance(self, cls)
        self.key = key
        return self

    def kill(self) -> None:
        """Keep an idle worker, and kill any other."""
        if self.is_idle and self.key is not None:
            self.detach()
            self.kept.append(self)
            if len(self.kept) > MOST_KEPT:
                end(self.kept.pop(0))
        else:
            super().kill()

    def wait(self) -> int:
        """Wait for a worker that was really killed."""
        return 0 if self.is_idle else super().wait()


def end(worker: KeptWorker) -> None:
    """Kill a kept worker."""
    worker.key = None
    worker.kill()
    worker.wait()


@contextmanager
def kept_workers() -> Iterator[None]:
    """Share prompt workers among all servers, and kill them at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_pool, "Worker", KeptWorker)
        yield
    while KeptWorker.kept:
        end(KeptWorker.kept.pop())
