"""The events of a world: requests, and everything else that happens to the engine."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.stopping.repetition import RepetitionDetectionParams


@dataclass(frozen=True)
class Wait:
    """A thing that a request waits for: ready or failed after some ticks, or never."""

    reason: str
    ticks: int
    end: str  # "ready", "error" or "never"


@dataclass(frozen=True)
class Arrival:
    """The arrival of a request, whose prompt is determined at that moment."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    lora: str | None = None
    scope: str = ""
    # A fork starts with its parent's tokens at that moment, up to `keep` of its output, and
    # continues them with `prompt`.
    parent: str | None = None
    keep: int = 0
    inherits: bool = True  # it has its parent's adapter, cache scope, salts and encoder input
    salts: tuple[tuple[int, bytes], ...] = ()  # those within the prompt take effect
    encoder: int | None = None  # the number of an encoder input, which says its length too
    holds: tuple[Wait, ...] = ()
    owner: str = ""
    weight: float = 1.0
    is_background: bool = False
    repetition: RepetitionDetectionParams | None = None

    def __str__(self) -> str:
        """Return the text for a trace, without the last fields where they are not set."""
        text = repr(self).replace(", repetition=None", "")
        text = text.replace(", owner='', weight=1.0, is_background=False", "")
        return text.replace(", salts=(), encoder=None, holds=()", "")


@dataclass(frozen=True)
class Fault:
    """Any other event; KINDS explains `argument` and `number` for each kind."""

    kind: str
    argument: str = ""
    number: float = 0
