"""The bounds that a request must respect before it may wait: its own size, and the queue's.

Every rejection names both numbers. A request that is admitted here is never dropped for its size
later: that is half of the proof that every request finishes (scheduler.py has the other half).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Series

from octavo.core.config import MAX_PRIORITY, MAX_WEIGHT, CoreConfig
from octavo.core.kv.manager import KVManager
from octavo.core.limits import Limiter, overrides
from octavo.core.queue import WaitingQueue
from octavo.core.request import Request
from octavo.core.stats import OUTSIDE


class AdmissionRules:
    """The bounds of one engine, each checked in one place."""

    def __init__(
        self, config: CoreConfig, kv: KVManager, queue: WaitingQueue, limiters: Series[Limiter]
    ) -> None:
        self._config = config
        self._kv = kv
        self._queue = queue
        self._refusals = [each.refuse for each in limiters if overrides(each, "refuse")]
        kinds = [group.kind for group in config.groups]
        self._is_special = "cross" in kinds or "none" in kinds

    def refusal(self, request: Request, max_total: int) -> str | None:
        """Return why this request could never run, even alone; None if it could."""
        config = self._config
        num_prompt, num_emitted = len(request.prompt), len(request.emitted)
        if not num_prompt:
            return "the prompt has no tokens; at least one is needed to begin from"
        if num_prompt + num_emitted >= max_total:
            return (
                f"{num_prompt} prompt tokens and {num_emitted} already emitted leave no room for "
                f"another: max_tokens={request.sampling.max_tokens}, "
                f"max_model_len={config.max_model_len}"
            )
        if not (abs(request.priority) <= MAX_PRIORITY and math.isfinite(request.arrival)):
            return (
                f"priority={request.priority} must be within ±{MAX_PRIORITY} "
                f"and arrival={request.arrival} finite"
            )
        if not 1 / MAX_WEIGHT <= request.weight <= MAX_WEIGHT:
            return f"weight={request.weight} must be from {1 / MAX_WEIGHT} to {MAX_WEIGHT}"
        if self._is_special or request.encoder or request.salts or request.holds:
            mismatch = self._mismatch(request, max_total)
            if mismatch is not None:
                return mismatch
        num_encoder = 0 if request.encoder is None else request.encoder.num_positions
        # The last token's KV is never needed.
        num_blocks = self._kv.peak_pages(max_total - 1, num_encoder)
        if num_blocks > config.num_blocks - 1:
            return (
                f"{max_total} tokens (prompt and output) need {num_blocks} KV blocks of "
                f"{config.block_size} tokens; there are {config.num_blocks - 1} in all: "
                "shorten the prompt or max_tokens, or give the KV cache more memory"
            )
        for refuse in self._refusals:
            refusal = refuse(request, max_total)
            if refusal is not None:
                return refusal
        return None

    def _mismatch(self, request: Request, max_total: int) -> str | None:
        """Return what in the request has no meaning for this model; None if everything has."""
        kinds = [group.kind for group in self._config.groups]
        if ("cross" in kinds) != (request.encoder is not None):
            wanted = "needs an encoder's input" if "cross" in kinds else "has no encoder"
            return f"the model {wanted}, and encoder={request.encoder} was given"
        if "none" in kinds and max_total > len(request.prompt) + 1:
            return (
                f"the model keeps nothing of earlier tokens, so it gives one token at most: "
                f"max_tokens={request.sampling.max_tokens}"
            )
        places = [place for place, _ in request.salts]
        num_prompt = len(request.prompt)
        if places != sorted(places) or not all(0 <= place < num_prompt for place in places):
            return f"salts at {places} must be in order and in the prompt of {num_prompt} tokens"
        unknown = [reason for reason in request.holds if reason not in OUTSIDE]
        if unknown:
            return f"holds={request.holds} may only name {OUTSIDE}, and {unknown[0]!r} is none"
        return None

    def overload(self, request: Request) -> str | None:
        """Return why the queue cannot take this request now; None if it can.

        An empty queue takes a request of any length, since every request that can run must be
        able to wait. A resumed request is always taken: it was admitted before its engine died.
        """
        config, queue = self._config, self._queue
        num_tokens = request.num_tokens
        if request.resumed or not queue.num_waiting:
            return None
        if queue.num_waiting >= config.max_num_waiting:
            return f"{queue.num_waiting} requests wait; max_num_waiting={config.max_num_waiting}"
        if queue.num_tokens + num_tokens > config.max_waiting_tokens:
            return (
                f"{queue.num_tokens} tokens wait and {num_tokens} would be added; "
                f"max_waiting_tokens={config.max_waiting_tokens}"
            )
        return None
