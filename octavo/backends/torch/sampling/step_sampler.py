"""The part of a step besides the forward pass: slots, draws, verified drafts, pooled vectors.

Drafts are verified exactly: each is accepted if and only if it is the token that would have been
drawn in its place. This works for seeded as for greedy sampling, since noise depends on the
position and not on the time. Speculation therefore changes no text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Floats, Ints
from octavo.backends.step import (
    LAST_SAMPLE,
    NO_LOGPROBS,
    NOT_FINITE,
    Draws,
    HostBatch,
    RowLogprobs,
    StepOutput,
    Words,
)
from octavo.backends.torch.sampling.logprobs import LEAST, row_logprobs
from octavo.backends.torch.sampling.sampler import Sampler
from octavo.backends.torch.sampling.slot import Slot


def masked(logits: Floats, draws: Draws, masks: Words) -> Floats:
    """Return the logits with the least number for tokens that a row's mask does not allow."""
    num_rows = np.ones(len(draws.slots), np.int32)
    if draws.num_drafts is not None:
        num_rows += draws.num_drafts
    rows = np.repeat(draws.first_rows - (np.cumsum(num_rows) - num_rows), num_rows)
    rows += np.arange(len(rows), dtype=rows.dtype)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
    result = logits.copy()
    result[rows] = np.where(bits[: len(rows)].astype(np.bool_), logits[rows], LEAST)
    return result


def next_row(draws: Draws, own: slice, row: int, token: int) -> int:
    """Return the row of the sample's draft behind a row that is this token; 0 if there is none.

    `own` are the drafts of the sample among all.
    """
    drafts = draws.drafts[own]
    if not len(draws.parents):
        return row + 1 if row < len(drafts) and drafts[row] == token else 0
    found = np.flatnonzero((draws.parents[own] == row) & (drafts == token))
    return int(found[0]) + 1 if len(found) else 0


class StepSampler:
    """The slots of a backend, and the draws of its steps."""

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}
        self._sampler = Sampler()
        self.walks: list[list[int]] = []  # of the last step's samples: the rows drawn from

    def change(self, draws: Draws) -> None:
        """Free and open slots and append to them, before the step's batch is computed."""
        for number in draws.freed:
            del self.slots[number]
        for number, sampling in draws.opened:
            assert number not in self.slots, f"slot {number} is opened while in use"
            self.slots[number] = Slot(sampling)
        for number, tokens in draws.appended:
            for token in tokens:
                self.slots[number].append(token)

    def with_tokens(self, batch: HostBatch) -> HostBatch:
        """Return the batch with the token itself in place of each LAST_SAMPLE."""
        rows = np.flatnonzero(batch.token_ids == LAST_SAMPLE)
        if not len(rows):
            return batch
        token_ids = batch.token_ids.copy()
        owners = np.searchsorted(batch.row_starts, rows, side="right") - 1
        numbers = batch.slots[owners].tolist()
        token_ids[rows] = [self.slots[number].tokens[-1] for number in numbers]
        return batch._replace(token_ids=token_ids)

    def candidates(
        self, logits: Floats, slots: Sequence[Slot], widths: Sequence[int]
    ) -> list[list[int]]:
        """Draw tokens for each slot, open or not, from its row: as many as its width, or fewer.

        Each is the one that is drawn where those before it are forbidden.
        """
        found: list[list[int]] = [[] for _ in slots]
        masks: Words | None = None
        left = list(range(len(slots)))
        while left:
            own = None if masks is None else masks[left]
            drawn, failed = self._sampler.draw(logits[left], [slots[n] for n in left], own)
            if masks is None:
                masks = np.full((len(slots), -(-logits.shape[1] // 32)), 0xFFFFFFFF, np.uint32)
            rest = []
            for place, (number, token) in enumerate(zip(left, drawn.tolist(), strict=True)):
                if place not in failed:
                    found[number].append(token)
                    masks[number, token // 32] &= ~np.uint32(1 << token % 32)
                    if len(found[number]) < widths[number]:
                        rest.append(number)
            left = rest
        return found

    def finish(self, draws: Draws, logits: Floats, hidden: Floats) -> StepOutput:
        """Compute everything that follows the forward pass."""
        failures: dict[int, str] = {}
        prompts = self._prompts(draws, logits, failures)
        pooled = self._pool(draws, hidden, failures)
        tokens = self._draw(draws, logits, failures)
        if draws.masks is not None and any(
            self.slots[number].sampling.logprobs != NO_LOGPROBS for number in draws.slots.tolist()
        ):
            logits = masked(logits, draws, draws.masks.wait())
        logprobs = self._logprobs(draws, logits, tokens, failures)
        states = self._states(draws)
        failed = tuple(failures.items())
        return StepOutput(tokens, failed, logprobs, prompts, pooled, states=states)

    def _states(self, draws: Draws) -> tuple[tuple[int, float], ...]:
        """Return mirostat's state of each slot that has one."""
        slots = [(number, self.slots[number]) for number in draws.slots.tolist()]
        return tuple([(n, slot.mu) for n, slot in slots if slot.sampling.mirostat is not None])

    def _draw(
        self, draws: Draws, logits: Floats, failures: dict[int, str]
    ) -> tuple[tuple[int, ...], ...]:
        """Draw a token for every sample, and another after each accepted draft."""
        numbers = draws.slots.tolist()
        tokens: list[list[int]] = [[] for _ in numbers]
        if not numbers:
            return ()
        num_drafts = np.zeros(len(numbers), np.int32)
        if draws.num_drafts is not None:
            num_drafts = draws.num_drafts
        first_drafts = np.cumsum(num_drafts) - num_drafts
        all_masks = None if draws.masks is None else draws.masks.wait()
        chosen = np.arange(len(numbers))  # samples that draw in this round
        self.walks = [[0] for _ in numbers]
        while len(chosen):
            at = np.array([self.walks[sample][-1] for sample in chosen.tolist()], np.int32)
            masks = None
            if all_masks is not None:  # it has a row for each sample and each draft
                masks = all_masks[chosen + first_drafts[chosen] + at]
            slots = [self.slots[numbers[sample]] for sample in chosen]
            drawn, failed = self._draw_rows(logits, draws.first_rows[chosen] + at, slots, masks)
            for sample, slot, token in zip(chosen.tolist(), slots, drawn.tolist(), strict=True):
                tokens[sample].append(token)
                slot.append_drawn(token)
            for place, message in failed.items():
                failures.setdefault(numbers[chosen[place]], message)
            rest = []
            for sample in chosen.tolist():
                if numbers[sample] not in failures:
                    first = int(first_drafts[sample])
                    own = slice(first, first + int(num_drafts[sample]))
                    row = next_row(draws, own, self.walks[sample][-1], tokens[sample][-1])
                    if row:
                        self.walks[sample].append(row)
                        rest.append(sample)
            chosen = np.array(rest, np.int64)
        return tuple(map(tuple, tokens))

    def _draw_rows(
        self, logits: Floats, rows: Ints, slots: Sequence[Slot], masks: Words | None
    ) -> tuple[Ints, dict[int, str]]:
        """Draw a token from each of these rows; return also the failures, by their place."""
        return self._sampler.draw(logits[rows], slots, masks)

    def _logprobs(
        self,
        draws: Draws,
        logits: Floats,
        tokens: tuple[tuple[int, ...], ...],
        failures: dict[int, str],
    ) -> tuple[RowLogprobs, ...]:
        found = []
        for sample, number in enumerate(draws.slots.tolist()):
            sampling = self.slots[number].sampling
            wanted, given = sampling.logprobs, sampling.logprob_ids
            if wanted == NO_LOGPROBS:
                continue
            count = len(tokens[sample]) - (number in failures)
            if not count:
                continue
            rows = logits[draws.first_rows[sample] + np.array(self.walks[sample][:count])]
            found.append(row_logprobs(number, rows, tokens[sample][:count], wanted, given))
        return tuple(found)

    def _prompts(
        self, draws: Draws, logits: Floats, failures: dict[int, str]
    ) -> tuple[RowLogprobs, ...]:
        found = []
        for part in draws.prompts:
            rows = logits[part.first_row : part.first_row + len(part.targets)]
            if np.isfinite(rows).all():
                found.append(
                    row_logprobs(part.slot, rows, part.targets.tolist(), part.num_logprobs)
                )
            else:
                failures.setdefault(part.slot, NOT_FINITE)
        return tuple(found)

    def _pool(
        self, draws: Draws, hidden: Floats, failures: dict[int, str]
    ) -> tuple[tuple[int, Floats], ...]:
        """Add hidden states to the vectors of prompts, and return those that are complete."""
        complete = []
        for part in draws.pools:
            pooled = self.slots[part.slot].pooled
            rows = hidden[part.first_row : part.first_row + part.num_rows]
            if not part.apart:
                pooled.add(rows)
            if part.is_last or part.apart:
                vector = rows.flatten() if part.apart else pooled.mean
                if np.isfinite(vector).all():
                    complete.append((part.slot, vector))
                else:
                    failures.setdefault(part.slot, NOT_FINITE)
        return tuple(complete)
