"""Draws on the device: most tokens are drawn there, and only they cross to the host.

Rows whose slots have rules, filters or log-probabilities go to the host, with the tokens and in the
same copy, and the reference draws from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import Floats, Ints, Longs
from octavo.backends.cuda.footprint import MOST_AT_ONCE
from octavo.backends.cuda.noise import gumbel
from octavo.backends.step import NO_LOGPROBS, NO_TOKEN_LEFT, NOT_FINITE, Draws, StepOutput, Words
from octavo.backends.torch.device import Array, TensorDevice
from octavo.backends.torch.sampling import noise
from octavo.backends.torch.sampling.slot import Slot
from octavo.backends.torch.sampling.step_sampler import StepSampler

_NOT_FINITE, _NONE_LEFT = -1, -2  # in place of a token
_FAILURES = {_NOT_FINITE: NOT_FINITE, _NONE_LEFT: NO_TOKEN_LEFT}


class DeviceRows(NamedTuple):
    """The rows of logits that the device draws from, and those that the host needs."""

    rows: list[int]  # drawn there
    temperatures: list[float]
    keys: list[tuple[int, int]]
    fetched: list[int]  # ascending


class DeviceSampler(StepSampler):
    """A sampler whose plain rows are drawn on the device."""

    def __init__(self, home: TensorDevice) -> None:
        super().__init__()
        self._home = home
        self._drawn: dict[int, int] = {}  # by row of logits: the token, or a failure

    def split(self, draws: Draws) -> DeviceRows:
        """Decide which rows are drawn on the device; a mask makes none of them special."""
        found, fetched = DeviceRows([], [], [], []), set[int]()
        for part in draws.prompts:
            fetched.update(range(part.first_row, part.first_row + len(part.targets)))
        num_drafts = draws.num_drafts
        for sample, number in enumerate(draws.slots.tolist()):
            first = int(draws.first_rows[sample])
            count = 1 if num_drafts is None else 1 + int(num_drafts[sample])
            slot = self.slots[number]
            if slot.sampling.logprobs != NO_LOGPROBS or not slot.is_plain:
                fetched.update(range(first, first + count))
                continue
            found.rows.extend(range(first, first + count))
            found.temperatures.extend([slot.sampling.temperature] * count)
            position = len(slot.tokens) - slot.sampling.num_prompt
            seed = slot.sampling.seed
            found.keys.extend(noise.keys(seed, position + index) for index in range(count))
        return found._replace(fetched=sorted(fetched))

    def rehearse(self, vocabulary: int) -> None:
        """Draw once in each way, so that nothing is compiled later."""
        logits = torch.zeros(1, vocabulary, device=self._home.device)
        words = np.zeros((1, -(-vocabulary // 32)), np.int32)
        arrays: list[Array] = [
            np.zeros(1),
            np.zeros((1, 2), np.int64),
            np.zeros(0, np.int64),
            words,
        ]
        temperatures, keys, warm, masks = self._home.upload(arrays)
        for each in (None, masks):
            self._best(logits, warm, temperatures, keys, each)

    def draw_there(self, logits: Tensor, found: DeviceRows, draws: Draws) -> Tensor:
        """Submit the draws; return the tokens on the device. Wait for masks, if there are any."""
        temperatures = np.array(found.temperatures, np.float64)
        arrays: list[Array] = [
            np.array(found.rows, np.int64),
            np.flatnonzero(temperatures > 0),
            temperatures,
            signed_keys(found.keys),
        ]
        if draws.masks is not None:
            arrays.append(_words_of(draws, found.rows, draws.masks.wait()))
        rows, warm, temperatures_there, keys_there, *words = self._home.upload(arrays)
        masks = words[0] if words else None
        return self._best(logits[rows], warm, temperatures_there, keys_there, masks)

    def _best(
        self, raw: Tensor, warm: Tensor, temperatures: Tensor, keys: Tensor, masks: Tensor | None
    ) -> Tensor:
        """Return the best token of each row; rows with a temperature are named by `warm`."""
        size = raw.shape[1]
        allowed = raw if masks is None else raw.masked_fill(~_bits(masks, size), -torch.inf)
        tokens = allowed.argmax(1)
        step = max(1, MOST_AT_ONCE // size)
        for begin in range(0, len(warm), step):
            part = warm[begin : begin + step]
            scores = allowed[part].double() / temperatures[part, None]
            scores += gumbel(keys[part], size)
            tokens[part] = scores.argmax(1)
        if masks is not None:
            tokens.masked_fill_(allowed.amax(1) == -torch.inf, _NONE_LEFT)
        return tokens.masked_fill_(~torch.isfinite(raw).all(1), _NOT_FINITE)

    def best_of_rows(self, logits: Tensor, temperatures: Tensor, keys: Tensor) -> Tensor:
        """Return the best token of each row, in a way that does not depend on which are warm."""
        warm = (temperatures > 0)[:, None]
        divisors = torch.where(warm, temperatures[:, None], 1.0)
        scores, size = logits.double(), logits.shape[1]
        step = max(1, MOST_AT_ONCE // size)
        for begin in range(0, len(logits), step):
            part = slice(begin, begin + step)
            noisy = scores[part] / divisors[part] + gumbel(keys[part], size)
            scores[part] = torch.where(warm[part], noisy, scores[part])
        return scores.argmax(1).masked_fill_(~torch.isfinite(logits).all(1), _NOT_FINITE)

    def finish_with(
        self, draws: Draws, logits: Floats, hidden: Floats, found: DeviceRows, drawn: Sequence[int]
    ) -> StepOutput:
        """Compute what follows, from the device's tokens and the rows that were fetched."""
        self._drawn = dict(zip(found.rows, drawn, strict=True))
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


def _words_of(draws: Draws, rows: Sequence[int], masks: Words) -> Ints:
    """Return the masks of these rows of logits, which have theirs in the order of the samples."""
    num_rows = np.ones(len(draws.slots), np.int64)
    if draws.num_drafts is not None:
        num_rows += draws.num_drafts
    place, found = 0, dict[int, int]()
    for first, count in zip(draws.first_rows.tolist(), num_rows.tolist(), strict=True):
        found.update((first + index, place + index) for index in range(count))
        place += count
    return masks[[found[row] for row in rows]].view(np.int32)


def _bits(words: Tensor, size: int) -> Tensor:
    """Return which tokens packed bits allow: [rows, tokens]."""
    ids = torch.arange(size, device=words.device)
    return ((words[:, ids // 32] >> (ids % 32)) & 1).bool()
