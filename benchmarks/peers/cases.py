"""What is measured: cases as data, and the prompts that every engine gets alike.

A case is a number of requests, each with a prompt of random token ids and a number of tokens to
write, and the kind of figure that is made of it:

    decode    tokens written after the first, by the time they take: the call with all tokens less
              the call with one
    prefill   prompt tokens by the time to the first token
    total     tokens written by the whole time
    start     seconds from the start of a process to its first token
    python    microseconds a step outside native code: of one sequence, and of each further one
    http      tokens written by the whole time, and what clients saw, through a server
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

# Ids below this are special tokens in the vocabularies of use; above the other, not every model
# has them.
_FIRST_ID, _LAST_ID = 100, 30_000

Figure = Literal["decode", "prefill", "total", "start", "python", "http"]


@dataclass(frozen=True, slots=True)
class Case:
    """A number of requests of one shape, and the figure computed from them."""

    key: str  # as --cases names it
    name: str
    figure: Figure
    requests: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0  # of each prompt, the first ones are the same in all requests
    streams: int = 0  # over HTTP: requests at a time

    def prompts(self, seed: int) -> list[list[int]]:
        """Return random token ids, different in each run, so that no cache has them."""
        ids = random.Random(f"{self.name} {seed}")

        def some(count: int) -> list[int]:
            return [ids.randrange(_FIRST_ID, _LAST_ID) for _ in range(count)]

        shared = some(self.shared_tokens)
        return [
            shared + some(self.prompt_tokens - self.shared_tokens) for _ in range(self.requests)
        ]


def _streams(count: int) -> str:
    return f"{count} stream{'s' * (count > 1)}"


STREAMS = (2, 3, 5, 8, 16)
HTTP_REQUESTS = {1: 4, 8: 16, 32: 32}  # one stream's figure would be a short one

_ALL = (
    *(
        Case(f"decode{count}", f"decode, {_streams(count)}", "decode", count, 128, 128)
        for count in (1, *STREAMS)
    ),
    Case("decode1-1b", "decode, 1 stream, 1B shape", "decode", 1, 128, 128),
    Case("prefill512", "prefill 512", "prefill", 1, 512, 1),
    Case("prefill2048", "prefill 2048", "prefill", 1, 2048, 1),
    Case("batch64", "64 requests, 128 in, 128 out", "total", 64, 128, 128),
    Case("shared32", "32 requests, 1024 of 1056 shared", "total", 32, 1056, 32, 1024),
    Case("start", "process start to first token", "start", 1, 8, 1),
    Case("python", "Python a step", "python", 33, 64, 64),
    *(
        Case(f"http{streams}", f"HTTP, {_streams(streams)}", "http", count, 128, 128, 0, streams)
        for streams, count in HTTP_REQUESTS.items()
    ),
)
CASES = {case.key: case for case in _ALL}


def rate(case: Case, whole_s: float, first_s: float) -> float:
    """Return tokens a second, from the seconds of the whole call and of one with one token."""
    match case.figure:
        case "decode":
            return case.requests * (case.output_tokens - 1) / max(whole_s - first_s, 1e-9)
        case "prefill":
            return case.requests * case.prompt_tokens / whole_s
        case _:
            return case.requests * case.output_tokens / whole_s
