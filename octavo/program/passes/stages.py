"""A listing cut into stages, each of which another process computes.

The first stage has the beginning and, behind the last layers, the end of the listing: it looks the
tokens up and makes logits of the rows that come back. A listing can be cut where one value crosses,
which is the residual stream, and where no two layers that share what they keep come apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct, structs

from octavo.program.listing import ACROSS_ROWS, Buffer, Instruction, Listing, Value

Place = tuple[int, int]
# The matrices that an instruction reads, with their bytes; one that several read is one object.
Sizes = Callable[[Instruction], Iterable[tuple[object, int]]]


class StageError(ValueError):
    """A model that cannot be cut into so many stages."""


class Cut(Struct, frozen=True):
    """A place before an instruction, and the value that crosses it."""

    at: int
    value: Value


def possible_cuts(listing: Listing) -> list[Cut]:
    """Return where one value crosses, of the step's rows, and nothing that is kept is shared."""
    instructions = listing.instructions
    first: dict[Buffer | Place, int] = {}
    last: dict[Buffer | Place, int] = {}
    values: dict[Buffer, Value] = {}
    for at, instruction in enumerate(instructions):
        for value in (*instruction.writes, *instruction.reads):
            if value.buffer.place == "Scratch":
                first.setdefault(value.buffer, at)
                last[value.buffer] = at
                values.setdefault(value.buffer, value)
        for place in _places(instruction):
            first.setdefault(place, at)
            last[place] = at
    crossing: list[list[Buffer | Place]] = [[] for _ in range(len(instructions) + 1)]
    for item, begin in first.items():
        for at in range(begin + 1, last[item] + 1):
            crossing[at].append(item)
    cuts = []
    for at, items in enumerate(crossing):
        if len(items) == 1 and isinstance(items[0], Buffer):
            (buffer,) = items
            if isinstance(buffer, Buffer) and buffer.space in ("Tokens", "Wanted"):
                whole = Value(buffer, 0, buffer.width, values[buffer].recorder)
                cuts.append(Cut(at, whole))
    return cuts


def choose_cuts(listing: Listing, stages: int, sizes: Sizes) -> list[Cut]:
    """Return one cut more than there are further stages, whose largest stage is the smallest.

    Stages are compared by the bytes of their matrices. Each further stage has whole layers, the
    first one those before the first cut and what is behind the last one.
    """
    cuts = possible_cuts(listing)
    mixers = [at for at, i in enumerate(listing) if i.op in ACROSS_ROWS]
    before = [[cut for cut in cuts if cut.at <= mixer] for mixer in mixers]
    inner = list({each[-1].at: each[-1] for each in before if each}.values())
    firsts = (at for at, i in enumerate(listing) if any(map(_is_result, i.writes)))
    results = next(firsts, len(listing.instructions))
    behind = [cut for cut in cuts if mixers and mixers[-1] < cut.at <= results]
    if len(inner) < stages - 1 or not behind:
        raise StageError(
            f"the model can be cut at {len(inner)} places, and {stages} stages need "
            f"{stages - 1} at least; take fewer"
        )
    upto = [0, *accumulate(_new_bytes(listing, sizes))]
    best: tuple[int, list[Cut]] | None = None
    for end in reversed(behind):
        for number, begin in enumerate(inner):
            own = upto[begin.at] + upto[-1] - upto[end.at]
            found = _divide([*inner[number:], end], upto, stages - 1)
            if found is None:
                continue
            largest = max(own, *(upto[b.at] - upto[a.at] for a, b in pairwise(found)))
            if best is None or largest < best[0]:
                best = largest, found
    assert best is not None
    return best[1]


def own_part(listing: Listing, cuts: Sequence[Cut], stage: int) -> Listing:
    """Return what a stage computes; stage 0 has its rows sent through the others."""
    all_ = listing.instructions
    if stage == 0:
        relay = Instruction("Relay", cuts[0].value, out=cuts[-1].value)
        return Listing([*all_[: cuts[0].at], relay, *all_[cuts[-1].at :]])
    given, made = cuts[stage - 1], cuts[stage]
    x = made.value
    out = Value(Buffer(x.buffer.space, x.width, "StateOut"), 0, x.width, x.recorder)
    return Listing(
        [
            Instruction("Given", out=given.value),
            *all_[given.at : made.at],
            Instruction("Scale", x, out=out),  # by one: a copy
        ]
    )


def number_layers(listing: Listing) -> dict[int, int]:
    """Number the layers of each group of KV anew; return how many this listing has of each."""
    numbers: dict[int, dict[int, int]] = {}
    for instruction in listing:
        for group, layer in _places(instruction):
            known = numbers.setdefault(group, {})
            place = group, known.setdefault(layer, len(known))
            if instruction.attend is not None:
                instruction.attend = structs.replace(instruction.attend, place=place)
            elif instruction.convolve is not None:
                instruction.convolve = structs.replace(instruction.convolve, place=place)
            else:
                instruction.place = place
    return {group: len(known) for group, known in numbers.items()}


def _is_result(value: Value) -> bool:
    """Return whether a value is what the engine asks for, or only has its rows."""
    return value.buffer.place != "Scratch" or value.buffer.space in ("Logits", "Hidden")


def _places(i: Instruction) -> tuple[Place, ...]:
    """Return where an instruction keeps rows for later steps, if it does."""
    if i.attend is not None:
        return (i.attend.place,)
    if i.convolve is not None:
        return (i.convolve.place,)
    return (i.place,) if i.op in ("Keep", "Recall") else ()


def _new_bytes(listing: Listing, sizes: Sizes) -> list[int]:
    """Return for each instruction the bytes of the matrices that none before it reads."""
    seen: set[int] = set()
    found = []
    for instruction in listing:
        num_bytes = 0
        for matrix, size in sizes(instruction):
            num_bytes += 0 if id(matrix) in seen else size
            seen.add(id(matrix))
        found.append(num_bytes)
    return found


def _divide(cuts: list[Cut], upto: Sequence[int], parts: int) -> list[Cut] | None:
    """Divide what is from the first cut to the last one so that its largest part is smallest."""
    if len(cuts) - 1 < parts:
        return None
    low, high = 0, upto[cuts[-1].at] - upto[cuts[0].at]
    while low < high:
        middle = (low + high) // 2
        if _filled(cuts, upto, parts, middle) is None:
            low = middle + 1
        else:
            high = middle
    return _filled(cuts, upto, parts, low)


def _filled(cuts: list[Cut], upto: Sequence[int], parts: int, most: int) -> list[Cut] | None:
    """Fill one part after the other up to so many bytes; None if that needs more parts."""
    chosen, at = [cuts[0]], 0
    for left in range(parts - 1, -1, -1):
        end = at + 1
        while end + 1 < len(cuts) - left and upto[cuts[end + 1].at] - upto[cuts[at].at] <= most:
            end += 1
        if upto[cuts[end].at] - upto[cuts[at].at] > most:
            return None
        chosen.append(cuts[end])
        at = end
    return chosen if at == len(cuts) - 1 else None
