"""Late chunking, in vLLM's form: the mean vector of each part of a text that was read whole."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import add

from msgspec import Struct
from msgspec.structs import replace

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.inputs import prefix_of
from octavo.api.pooling.tasks import Wanted, hidden_state
from octavo.dialects.common.arrays import encoded_each
from octavo.dialects.embeddings.schema import EmbeddingData, EmbeddingRequest, LateChunk, LateChunks
from octavo.dialects.embeddings.vectors import EmbeddingWriter, embeddings_of, translated
from octavo.serving.bounds.response_size import VALUE_BYTES
from octavo.serving.bounds.turns import ByteTurns
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, GenerationRequest, PreparedRequest
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob

NAME = "late_chunking_params"
_CHUNKS = b'"chunks":[]'  # in the answer; in a string its quotes would be escaped
_WORK = 1 << 10  # bytes of an answer that take about as long as a part and its place


def embeddings(context: TranslationContext, request: EmbeddingRequest) -> GenerationRequest:
    """Return the neutral form of a request for embeddings, of texts or of their parts."""
    if request.late_chunking_params is None:
        return embeddings_of(context, request)
    asked = translated(context, request, "token_embed", ChunkWriter)
    _check(context, request)
    jobs: list[PromptJob | list[int]] = []
    for index, job in enumerate(asked.prompts):
        if not (isinstance(job, PromptJob) and job.text):
            error = invalid(
                f"prompt: {NAME} needs texts, which are not empty: the answer says where each "
                "part is in its text",
                "prompt",
            )
            raise asked.named(error, index)
        jobs.append(replace(job, wants_places=True))
    asked.prompts, asked.keeps_frame = jobs, False
    return asked


def _check(context: TranslationContext, request: EmbeddingRequest) -> None:
    """Refuse what has no places in a text, or no vectors of its parts."""
    if context.facts.pooling.embed_head:
        raise invalid(
            f"{NAME}: this model has dense layers for the vector of a whole text, which do not fit "
            "the mean of some tokens; leave it out",
            NAME,
        )
    if request.truncate_prompt_tokens is not None:
        name = "truncate_prompt_tokens"
        raise invalid(f"{NAME} is for whole texts; leave {name} out", name)
    if request.encoding_format not in (None, "float"):
        name = "encoding_format"
        raise invalid(f"{NAME} has vectors as lists of numbers; ask for {name}='float'", name)


class ChunkWriter(EmbeddingWriter):
    """The vectors of each text's parts, with their places."""

    def __init__(
        self,
        request: EmbeddingRequest,
        asked: Wanted,
        exchange: Exchange,
        prepared: PreparedRequest,
    ) -> None:
        super().__init__(request, asked, exchange, prepared)
        params = request.late_chunking_params
        assert params is not None, "it was asked for"
        self._size = params.chunk_size
        self._prefix = len(prefix_of(exchange.server.llm.facts, request.prompt_name))
        self._places = [array("i", each.packed_places) for each in prepared.prompts]

    def _of_tokens(self, index: int) -> Struct:
        num_tokens = len(self._places[index]) // 2
        late = LateChunks(chunk_size=self._size, input_tokens=num_tokens, chunks=[])
        return EmbeddingData(index=index, embedding=[], late_chunking=late)

    def _end(self, index: int, tail: bytes) -> Iterator[bytes]:
        """Yield the places of the parts, with turns for other requests."""
        before, _, after = tail.partition(_CHUNKS)
        yield before + _CHUNKS[:-1]
        ends = iter(self._places[index])
        places = (
            (max(0, begin - self._prefix), max(0, end - self._prefix))
            for begin, end in zip(ends, ends, strict=True)
        )
        yield from encoded_each(chunks_of(places, self._size), _WORK)
        yield b"]" + after

    def _rows(self, output: RequestOutput) -> Iterator[bytes]:
        """Yield the mean vector of each part, with turns for other requests."""
        turns, comma = ByteTurns(), b""
        values, num_rows = hidden_state(output), len(output.prompt_ids)
        width = len(values) // num_rows
        for start in range(0, num_rows, self._size):
            end = min(start + self._size, num_rows)
            total = [0.0] * width
            for row in range(start, end):
                total = list(map(add, total, values[row * width : (row + 1) * width]))
                if turns.is_due(VALUE_BYTES * width):
                    yield TURN
            vector = self.asked.finished([value / (end - start) for value in total])
            yield comma + encode(vector)
            comma = b","


def chunks_of(places: Iterable[tuple[int, int]], size: int) -> Iterator[LateChunk]:
    """Yield the parts of a text by the places of its tokens; special tokens have none."""
    left, start = iter(places), 0
    while part := list(islice(left, size)):
        found = [(begin, end) for begin, end in part if begin < end]
        where = (min(found)[0], max(end for _, end in found)) if found else None
        yield LateChunk(token_range=(start, start + len(part)), char_range=where)
        start += len(part)
