"""Prompt workers that outlive a test's server, so that few tests wait for a new one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from octavo.server import prompt_pool
from octavo.server.prompt_pool import Worker
from octavo.server.settings import ServerSettings
from octavo.text.prompt_worker import PreparedPrompt, PromptJob, Refused


class KeptWorker(Worker):
    """A real worker; a server that ends leaves it to the next one if it is idle."""

    kept: ClassVar[defaultdict[tuple[str, float, float], list[KeptWorker]]] = defaultdict(list)
    key: tuple[str, float, float] | None = None
    is_idle = False

    @classmethod
    def launch(cls, config: ServerSettings, path: str) -> KeptWorker:
        """Return an idle worker of the same tokenizer and limits, or start one."""
        key = (path, config.template_seconds, config.tokenize_seconds)
        if cls.kept[key]:
            return cls.kept[key].pop()
        self = super().launch(config, path)
        assert isinstance(self, cls)
        self.key = key
        return self

    async def become_ready(self) -> None:
        """Wait for a new worker; it is idle from then on."""
        await super().become_ready()
        self.is_idle = True

    async def do(self, job: PromptJob, answer: asyncio.Future[Any]) -> PreparedPrompt | Refused:
        """Record that the worker is busy until it has answered."""
        self.is_idle = False
        result = await super().do(job, answer)
        self.is_idle = True
        return result

    def kill(self) -> None:
        """Keep an idle worker, and kill any other."""
        if self.is_idle and self.key is not None:
            self.kept[self.key].append(self)
        else:
            super().kill()

    def wait(self) -> int:
        """Wait for a worker that was really killed."""
        return 0 if self.is_idle else super().wait()


@contextmanager
def kept_workers() -> Iterator[None]:
    """Share prompt workers among all servers, and kill them at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_pool, "Worker", KeptWorker)
        yield
    for workers in KeptWorker.kept.values():
        for worker in workers:
            worker.is_idle = False
            worker.kill()
            worker.wait()
    KeptWorker.kept.clear()
