"""Where requests are opened and events come in: text on one side, tokens on the other.

A user's request becomes `n` sequences of the core, forks of the first. The desk makes them,
follows their events, and puts the outputs together. It neither steps an engine nor waits for one,
so the offline and the streaming interface share it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from octavo.core.request import Abort, Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.frontend.inputs import Input
from octavo.frontend.outputs import RequestError, RequestOutput
from octavo.frontend.stream import Stream
from octavo.frontend.tokenizer import Tokenizer


@dataclass(slots=True)
class Entry:
    """One open request."""

    output: RequestOutput
    sampling: SamplingParams
    streams: dict[str, Stream]
    requests: list[Request] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether every continuation has ended."""
        return all(stream.whole.finished() for stream in self.streams.values())


@dataclass(frozen=True, slots=True)
class Options:
    """What a request may ask for besides its sampling."""

    priority: int = 0
    lora: str | None = None
    cache_scope: str = ""


class Desk:
    """All open requests of one front end."""

    def __init__(
        self, tokenizer: Tokenizer, end_ids: Sequence[int], max_model_len: int, seed: int
    ) -> None:
        self.tokenizer = tokenizer
        self._end_ids = tuple(end_ids)
        self._max_model_len = max_model_len
        self._seed = seed  # of requests that bring none: one is drawn from it for each
        self._num_opened = 0
        self._entries: dict[str, Entry] = {}
        self._owner: dict[str, str] = {}  # the core's request id → ours

    def open(
        self,
        request_id: str,
        prompt: Input,
        sampling: SamplingParams,
        arrival: float,
        options: Options = Options(),
    ) -> list[Request]:
        """Begin a request: what is to be handed to the core."""
        if request_id in self._entries:
            raise RequestError(f"request id {request_id!r} is in use")
        if len(prompt.token_ids) >= self._max_model_len:
            raise RequestError(
                f"the prompt has {len(prompt.token_ids)} tokens; max_model_len="
                f"{self._max_model_len} leaves no room for an answer: shorten it"
            )
        self._num_opened += 1
        seed = sampling.seed
        if seed is None:
            seed = (self._seed * 0x9E3779B97F4A7C15 + self._num_opened * 0xD1B54A32D192ED03) % 2**63
        output = RequestOutput(request_id, prompt.text, list(prompt.token_ids), [])
        entry = Entry(output, sampling, {})
        for index in range(sampling.n):
            name = request_id if index == 0 else f"{request_id}/{index}"
            entry.requests.append(
                Request(
                    request_id=name,
                    prompt=array("i", prompt.token_ids),
                    sampling=replace(sampling, n=1, seed=(seed + index) % 2**63),
                    arrival=arrival,
                    eos_token_ids=self._end_ids,
                    priority=options.priority,
                    lora=options.lora,
                    cache_scope=options.cache_scope,
                    parent_id=request_id if index else None,
                )
            )
            stream = Stream(index, prompt.token_ids, sampling, self.tokenizer)
            entry.streams[name] = stream
            self._owner[name] = request_id
        self._entries[request_id] = entry
        return entry.requests

    def receive(self, event: TokenEvent) -> tuple[RequestOutput | None, Abort | None]:
        """Follow one event: news for the user if there is any, and a stop for the core."""
        owner = self._owner.get(event.request_id)
        if owner is None:  # it ended here by a stop string before the core knew
            return None, None
        entry = self._entries[owner]
        stream = entry.streams[event.request_id]
        if event.finish_reason in ("refused", "overloaded", "error"):
            self.close(owner)
            raise RequestError(f"request {owner!r}: {event.message}")
        stops = stream.push(event)
        if event.stats is not None and entry.output.metrics is None:
            entry.output.metrics = event.stats
            entry.output.num_cached_tokens = event.stats.num_cached_tokens
        if stream.whole.finished():
            del self._owner[event.request_id]
        output = self._output(entry)
        if entry.is_done:
            self.close(owner)
        return output, Abort(event.request_id) if stops else None

    def close(self, request_id: str) -> list[Abort]:
        """Forget a request: what the core must be told to drop."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return []
        open_names = [name for name in entry.streams if self._owner.pop(name, None)]
        return [Abort(name) for name in open_names]

    def _output(self, entry: Entry) -> RequestOutput:
        done = entry.is_done
        outputs = [stream.whole for stream in entry.streams.values()]
        return replace(entry.output, outputs=outputs, finished=done)
