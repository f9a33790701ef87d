"""Draws on the device: most tokens are drawn there, and only they cross to the host.

So are filters, bias, penalties and forbidden tokens. Rows whose slots have other rules (processors,
DRY), a chain of samplers or log-probabilities go to the host, with the tokens and in the same copy,
and the reference draws from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import Doubles, Floats, Ints, Longs
from octavo.backends.cuda.filters import Filters, HostFilters, are_kept, host_filters
from octavo.backends.cuda.footprint import MOST_AT_ONCE
from octavo.backends.cuda.noise import gumbel
from octavo.backends.cuda.row_rules import changes_of, forbid, forbids, has_device_rules
from octavo.backends.step import (
    NO_LOGPROBS,
    NO_ROWS,
    NO_TOKEN_LEFT,
    NOT_FINITE,
    Draws,
    SlotSampling,
    StepOutput,
    Words,
)
from octavo.backends.torch.device import Array, TensorDevice
from octavo.backends.torch.sampling import noise
from octavo.backends.torch.sampling.slot import Slot
from octavo.backends.torch.sampling.step_sampler import StepSampler

_NOT_FINITE, _NONE_LEFT = -1, -2  # in place of a token
_FAILURES = {_NOT_FINITE: NOT_FINITE, _NONE_LEFT: NO_TOKEN_LEFT}


class DeviceRows(NamedTuple):
    """The rows of logits that the device draws from, and those that the host needs."""

    rows: list[int]  # drawn there
    slots: list[Slot]  # of each of them
    keys: list[tuple[int, int]]
    fetched: list[int]  # ascending

    @property
    def have_rules(self) -> bool:
        """True if logits change before they are drawn from."""
        return any(slot.rules is not None for slot in self.slots)

    def temperatures(self) -> Doubles:
        """Return the temperatures of the rows that are drawn there."""
        return np.array([slot.sampling.temperature for slot in self.slots], np.float64)

    def filters(self) -> HostFilters:
        """Return the filters of the rows that are drawn there."""
        return host_filters([slot.sampling for slot in self.slots])


class DeviceSampler(StepSampler):
    """A sampler that draws most rows on the device."""

    def __init__(self, home: TensorDevice) -> None:
        super().__init__()
        self._home = home
        self._drawn: dict[int, int] = {}  # by row of logits: the token, or a failure

    def split(self, draws: Draws) -> DeviceRows:
        """Decide which rows are drawn on the device; a mask makes none of them special."""
        found, fetched = DeviceRows([], [], [], []), set[int]()
        for part in draws.prompts:
            fetched.update(range(part.first_row, part.first_row + len(part.targets)))
        first_draft = 0
        for sample, number in enumerate(draws.slots.tolist()):
            first = int(draws.first_rows[sample])
            num_drafts = 0 if draws.num_drafts is None else int(draws.num_drafts[sample])
            slot = self.slots[number]
            rows = range(first, first + 1 + num_drafts)
            if _is_drawn_there(slot, num_drafts):
                position = len(slot.tokens) - slot.sampling.num_prompt
                seed = slot.sampling.seed
                found.rows.extend(rows)
                found.slots.extend([slot] * len(rows))
                parents = draws.parents[first_draft : first_draft + num_drafts]
                depths = _depths(num_drafts, parents.tolist())
                found.keys.extend(noise.keys(seed, position + depth) for depth in depths)
            else:
                fetched.update(rows)
            first_draft += num_drafts
        return found._replace(fetched=sorted(fetched))

    def rehearse(self, vocabulary: int) -> None:
        """Draw once in each way, so that nothing is compiled later."""
        logits = torch.zeros(1, vocabulary, device=self._home.device)
        words = np.zeros((1, -(-vocabulary // 32)), np.int32)
        arrays: list[Array] = [np.zeros(1), np.zeros((1, 2), np.int64), words]
        arrays += [*host_filters([SlotSampling(NO_ROWS, 0)])]
        arrays += [np.zeros(1, np.int64), np.ones((4, 1), np.float32)]
        temperatures, keys, masks, *more = self._home.upload(arrays)
        filters = Filters(*more[:3])
        for each in (None, masks):
            for some in (None, filters):
                self._best(logits, temperatures, keys, each, some)
        self._change_logits(logits, *more[3:])

    def draw_there(self, logits: Tensor, found: DeviceRows, draws: Draws) -> Tensor:
        """Submit the draws; return the tokens on the device. Wait for masks, if there are any."""
        size = logits.shape[1]
        arrays: list[Array] = [
            np.array(found.rows, np.int64),
            found.temperatures(),
            signed_keys(found.keys),
        ]
        filters = found.filters()
        if not filters.are_off:
            arrays += filters
        ruled = {place: slot for place, slot in enumerate(found.slots) if slot.rules is not None}
        words = _words_of(draws, found, ruled, size)
        if words is not None:
            arrays.append(words.view(np.int32))
        changes = changes_of(ruled, size)
        if len(changes.places):
            arrays += changes
        rows, temperatures, keys, *more = self._home.upload(arrays)
        raw = logits[rows]
        there = None if filters.are_off else Filters(*(more.pop(0) for _ in range(3)))
        masks = None if words is None else more.pop(0)
        if more:
            self._change_logits(raw, *more)
        return self._best(raw, temperatures, keys, masks, there)

    def _change_logits(self, logits: Tensor, places: Tensor, numbers: Tensor) -> None:
        """Change single logits in place, as `Changes` says."""
        flat = logits.view(-1)
        values = flat[places] + numbers[0]
        values = torch.where(values > 0, values / numbers[1], values * numbers[1])
        flat[places] = values - numbers[2] - numbers[3]

    def _best(
        self,
        raw: Tensor,
        temperatures: Tensor,
        keys: Tensor,
        masks: Tensor | None,
        filters: Filters | None,
    ) -> Tensor:
        """Return the best token of each row."""
        allowed = raw
        if masks is not None:
            allowed = raw.masked_fill(~_bits(masks, raw.shape[1]), -torch.inf)
        tokens = self._best_allowed(allowed, temperatures, keys, filters)
        if masks is not None:
            tokens.masked_fill_(allowed.amax(1) == -torch.inf, _NONE_LEFT)
        return tokens.masked_fill_(~torch.isfinite(raw).all(1), _NOT_FINITE)

    def best_of_rows(
        self, logits: Tensor, temperatures: Tensor, keys: Tensor, filters: Filters
    ) -> Tensor:
        """Return the best token of each row; what a row below no temperature has means nothing."""
        return self._best(logits, temperatures, keys, None, filters)

    def _best_allowed(
        self, logits: Tensor, temperatures: Tensor, keys: Tensor, filters: Filters | None
    ) -> Tensor:
        """Return the best token of each row, some rows at once."""
        tokens, size = [], logits.shape[1]
        step = max(1, MOST_AT_ONCE // size)
        for begin in range(0, len(logits), step):
            part = slice(begin, begin + step)
            own, degrees = logits[part], temperatures[part]
            is_warm = (degrees > 0)[:, None]
            if filters is not None:
                kept = are_kept(own, degrees, filters.of(part))
                own = own.masked_fill(is_warm & ~kept, -torch.inf)
            scores = own.double() / torch.where(is_warm, degrees[:, None], 1.0)
            scores += gumbel(keys[part], size).masked_fill_(~is_warm, 0.0)
            tokens.append(scores.argmax(1))
        return torch.cat(tokens)

    def finish_with(
        self,
        draws: Draws,
        logits: Floats,
        hidden: Floats,
        rows: Sequence[int],
        drawn: Sequence[int],
    ) -> StepOutput:
        """Compute what follows, from the device's tokens of rows and the rows that were fetched."""
        self._drawn = dict(zip(rows, drawn, strict=True))
        return self.finish(draws, logits, hidden)

    def _draw_rows(
        self, logits: Floats, rows: Ints, slots: Sequence[Slot], masks: Words | None
    ) -> tuple[Ints, dict[int, str]]:
        tokens, failures = np.zeros(len(rows), np.int32), dict[int, str]()
        others = []
        for place, row in enumerate(rows.tolist()):
            token = self._drawn.get(row)
            if token is None:
                others.append(place)
            elif token < 0:
                failures[place] = _FAILURES[token]
            else:
                tokens[place] = token
        if others:
            some = None if masks is None else masks[others]
            of_others = [slots[place] for place in others]
            drawn, failed = super()._draw_rows(logits, rows[others], of_others, some)
            tokens[others] = drawn
            failures.update((others[place], message) for place, message in failed.items())
        return tokens, failures


def signed_keys(keys: Sequence[tuple[int, int]]) -> Longs:
    """Return keys as the device has them: [rows, 2]."""
    return np.array(keys, np.uint64).reshape(-1, 2).view(np.int64)


def _is_drawn_there(slot: Slot, num_drafts: int) -> bool:
    """Return whether a slot's rows are drawn on the device.

    Rules of a row behind a draft follow from whether that was drawn, which the host finds out.
    """
    sampling = slot.sampling
    if sampling.logprobs != NO_LOGPROBS or (sampling.chain and sampling.temperature):
        return False
    return has_device_rules(slot) and not (num_drafts and slot.rules is not None)


def _depths(num_drafts: int, parents: Sequence[int]) -> list[int]:
    """Return how many drafts stand before each row of a sample, up to its root."""
    if not parents:
        return [*range(num_drafts + 1)]
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return depths


def _words_of(
    draws: Draws, found: DeviceRows, ruled: Mapping[int, Slot], size: int
) -> Words | None:
    """Return which tokens each row may become, by its mask and rules; None if all may."""
    ruled = {place: slot for place, slot in ruled.items() if forbids(slot)}
    if draws.masks is not None:
        words = _masks_of(draws, found.rows, draws.masks.wait())
    elif ruled:
        words = np.full((len(found.rows), -(-size // 32)), 0xFFFFFFFF, np.uint32)
    else:
        return None
    forbid(words, ruled, size)
    return words


def _masks_of(draws: Draws, rows: Sequence[int], masks: Words) -> Words:
    """Return the masks of these rows of logits, which have theirs in the order of the samples."""
    num_rows = np.ones(len(draws.slots), np.int64)
    if draws.num_drafts is not None:
        num_rows += draws.num_drafts
    place, found = 0, dict[int, int]()
    for first, count in zip(draws.first_rows.tolist(), num_rows.tolist(), strict=True):
        found.update((first + index, place + index) for index in range(count))
        place += count
    return masks[[found[row] for row in rows]]


def _bits(words: Tensor, size: int) -> Tensor:
    """Return which tokens packed bits allow: [rows, tokens]."""
    ids = torch.arange(size, device=words.device)
    return ((words[:, ids // 32] >> (ids % 32)) & 1).bool()
