"""What the server's settings say of workers."""

from __future__ import annotations

from typing import Protocol


class WorkerLimits(Protocol):
    """The number of workers, the limits of one job, and how bodies are read."""

    @property
    def prompt_workers(self) -> int:
        """The processes that make prompts."""

    @property
    def template_seconds(self) -> float:
        """The time to render a chat template."""

    @property
    def tokenize_seconds(self) -> float:
        """The time to tokenise a text."""

    @property
    def shape_seconds(self) -> float:
        """The time to compile a shape."""

    @property
    def prompt_worker_bytes(self) -> int:
        """The memory of a job."""

    @property
    def max_waiting_requests(self) -> int:
        """The most jobs that wait."""

    @property
    def chat_template(self) -> str | None:
        """The operator's template; None: the model's own."""

    @property
    def body_reader(self) -> str:
        """The function, as `module:name`, that returns the reader of large bodies."""
