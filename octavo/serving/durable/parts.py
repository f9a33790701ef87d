"""The parts of an output: what of it is of one kind, and becomes events of its own.

However the tokens between two positions are divided into outputs, the parts together are the same:
what continues a part adds to it, and begins no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from octavo.api.outputs import CompletionOutput
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta

Kind = tuple[object, ...]


def kind_of(one: CompletionOutput) -> Kind | None:
    """Return what distinguishes a part from those beside it; None for tokens alone."""
    return _kind(one.deltas[0]) if one.deltas else None


def parts_of(one: CompletionOutput) -> list[CompletionOutput]:
    """Divide an output into its parts, of which the last has the tokens.

    A text's end is not apart from it; nor is anything that continues the delta before it.
    """
    deltas = one.deltas
    if not deltas or (len(deltas) == 1 and not isinstance(deltas[0], ToolCallDelta)):
        return [one]
    parts: list[list[Delta]] = []
    for delta in _divided(deltas):
        if parts and _continues(parts[-1][-1], delta):
            parts[-1][-1] = _merged(parts[-1][-1], delta)
        elif parts and isinstance(delta, FinishDelta) and isinstance(parts[-1][-1], TextDelta):
            parts[-1].append(delta)
        else:
            parts.append([delta])
    *others, last = parts
    return [*(_bare(one, part) for part in others), replace(one, deltas=last)]


def without_tokens(one: CompletionOutput) -> CompletionOutput:
    """Return a part with its deltas alone."""
    return _bare(one, one.deltas)


def tokens_alone(one: CompletionOutput) -> CompletionOutput:
    """Return what an output has besides its deltas."""
    return replace(one, text="", deltas=())


def _bare(one: CompletionOutput, deltas: Iterable[Delta]) -> CompletionOutput:
    kept = tuple(deltas)
    has_ended = any(isinstance(delta, FinishDelta) for delta in kept)
    return CompletionOutput(
        one.index,
        deltas=kept,
        finish_reason=one.finish_reason if has_ended else None,
        stop_reason=one.stop_reason if has_ended else None,
    )


def _divided(deltas: Iterable[Delta]) -> Iterable[Delta]:
    """Yield deltas, with the beginning of a call apart from its arguments."""
    for delta in deltas:
        if isinstance(delta, ToolCallDelta) and delta.name is not None and delta.arguments:
            yield replace(delta, arguments="")
            yield ToolCallDelta(delta.index, delta.arguments)
        else:
            yield delta


def _kind(delta: Delta) -> Kind:
    if isinstance(delta, ToolCallDelta):
        return ToolCallDelta, delta.index, delta.name is not None
    return (type(delta),)


def _continues(first: Delta, second: Delta) -> bool:
    return _kind(first) == _kind(second)


def _merged(first: Delta, second: Delta) -> Delta:
    """Return two deltas of one kind as one."""
    if isinstance(first, TextDelta) and isinstance(second, TextDelta):
        return TextDelta(first.text + second.text)
    if isinstance(first, ReasoningDelta) and isinstance(second, ReasoningDelta):
        return ReasoningDelta(first.text + second.text)
    if isinstance(first, ToolCallDelta) and isinstance(second, ToolCallDelta):
        return replace(first, arguments=first.arguments + second.arguments)
    return second  # there is one end
