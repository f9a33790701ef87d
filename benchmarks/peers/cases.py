"""What is measured: cases as data, and the prompts that every engine gets alike.

A case is a number of requests, each with a prompt of random token ids and a number of tokens to
write. Its figure is a rate in tokens per second, out of one or two timed calls:

    decode    tokens written after the first, by the time they take: the call with all tokens less
              the call with one
    prefill   prompt tokens by the time to the first token
    total     tokens written by the whole time
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

# Ids below this are special tokens in the vocabularies of use; above the other, not every model
# has them.
_FIRST_ID, _LAST_ID = 100, 30_000


@dataclass(frozen=True, slots=True)
class Case:
    """One figure."""

    name: str
    figure: Literal["decode", "prefill", "total"]
    requests: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0  # of each prompt, the first ones are the same in all requests

    def prompts(self, seed: int) -> list[list[int]]:
        """Token ids; no two runs of a process may find each other's in a cache."""
        ids = random.Random(f"{self.name} {seed}")

        def some(count: int) -> list[int]:
            return [ids.randrange(_FIRST_ID, _LAST_ID) for _ in range(count)]

        shared = some(self.shared_tokens)
        return [
            shared + some(self.prompt_tokens - self.shared_tokens) for _ in range(self.requests)
        ]


DECODE = tuple(
    Case(f"decode, {streams} stream{'s' * (streams > 1)}", "decode", streams, 128, 128)
    for streams in (1, 2, 3, 5, 8, 16)
)
PREFILL = (
    Case("prefill 512", "prefill", 1, 512, 1),
    Case("prefill 2048", "prefill", 1, 2048, 1),
)
BATCH = (Case("64 requests, 128 in, 128 out", "total", 64, 128, 128),)
SHARED = (Case("32 requests, 1024 of 1056 shared", "total", 32, 1056, 32, shared_tokens=1024),)
CASES = {case.name: case for case in (*DECODE, *PREFILL, *BATCH, *SHARED)}


def rate(case: Case, whole_s: float, first_s: float) -> float:
    """The case's figure, from the seconds of the whole call and of one with a single token."""
    match case.figure:
        case "decode":
            return case.requests * (case.output_tokens - 1) / max(whole_s - first_s, 1e-9)
        case "prefill":
            return case.requests * case.prompt_tokens / whole_s
        case "total":
            return case.requests * case.output_tokens / whole_s
