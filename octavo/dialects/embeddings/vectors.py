"""/v1/embeddings, /pooling and /classify: what a model makes of each text on its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import ClassVar

from msgspec import Struct

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.tasks import Task, default_task
from octavo.dialects.common.values import in_base64
from octavo.dialects.embeddings.binary import FORMATS, KIND, BytesWriter, check_described
from octavo.dialects.embeddings.common import (
    PooledWriter,
    input_errors,
    inputs_of,
    pooled_request,
    wanted_of,
)
from octavo.dialects.embeddings.dialect import CLASSIFY_ID, EMBEDDING_ID, POOLING_ID
from octavo.dialects.embeddings.schema import (
    ClassifyData,
    ClassifyRequest,
    ClassifyResponse,
    EmbeddingData,
    EmbeddingRequest,
    EmbeddingResponse,
    InputRequest,
    PooledResponse,
    PoolingData,
    PoolingRequest,
    PoolingResponse,
)
from octavo.serving.bounds.response_size import VALUE_BYTES
from octavo.serving.bounds.turns import ByteTurns
from octavo.serving.operation import TURN, GenerationRequest
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid
from octavo.transport.exchange import encode

_ROWS = 3  # of tokens at once: base64 of a part that others follow has no padding


def embeddings_of(context: TranslationContext, request: EmbeddingRequest) -> GenerationRequest:
    """Return the neutral form of a request for embeddings: of texts, or of each of their tokens."""
    of_tokens = context.facts.pooling.default_task == "token_embed"
    return translated(context, request, "token_embed" if of_tokens else "embed", EmbeddingWriter)


def pooling(context: TranslationContext, request: PoolingRequest) -> GenerationRequest:
    """Return the neutral form of a request for what a task makes of texts."""
    if request.late_chunking_params is not None:
        name = "late_chunking_params"
        raise invalid(f"{name} is for /v1/embeddings; send it there", name)
    task: Task | None = request.task
    if task is None:
        usual: Task = "embed" if "embed" in context.facts.pooling.tasks else "classify"
        task = default_task(context.facts, usual)
    return translated(context, request, task, PoolingWriter)


def classify(context: TranslationContext, request: ClassifyRequest) -> GenerationRequest:
    """Return the neutral form of a request for the classes of texts."""
    return translated(context, request, "classify", ClassifyWriter)


def translated(
    context: TranslationContext, request: InputRequest, task: Task, writer: type[PooledWriter]
) -> GenerationRequest:
    """Return the neutral form of a request for what a task makes of its inputs."""
    asked = wanted_of(context, task, request)
    prompts = inputs_of(context, request)
    is_binary = isinstance(request, EmbeddingRequest) and request.encoding_format in FORMATS
    used = BytesWriter if is_binary else writer
    made = pooled_request(context, request, prompts, asked, used, input_errors(request))
    if is_binary:
        check_described(request, made)
        made.kind = KIND
    return made


class EmbeddingWriter(PooledWriter):
    """Embeddings of inputs or of their tokens, as lists of numbers or in base64."""

    prefix = EMBEDDING_ID
    envelope: ClassVar[type[PooledResponse]] = EmbeddingResponse
    request: EmbeddingRequest

    def data(self, outputs: Sequence[RequestOutput]) -> Iterator[Struct]:
        """Yield the embedding of each input."""
        for index, output in enumerate(outputs):
            yield EmbeddingData(index=index, embedding=self._in_form(self.asked.vector(output)))

    def parts(self, outputs: Sequence[RequestOutput]) -> Iterator[bytes]:
        """Yield the vector of each input, or those of its tokens a few at a time."""
        if not self.asked.is_each_token:
            yield from super().parts(outputs)
            return
        for index, output in enumerate(outputs):
            head, empty, tail = encode(self._of_tokens(index)).partition(b"[]")
            marks = b'""' if self.request.encoding_format == "base64" else empty
            yield (b"," if index else b"") + head + marks[:1]
            yield from self._rows(output)
            yield marks[1:]
            yield from self._end(index, tail)

    def _end(self, index: int, tail: bytes) -> Iterator[bytes]:
        """Yield what follows the vectors of an input's tokens."""
        yield tail

    def _rows(self, output: RequestOutput) -> Iterator[bytes]:
        """Yield the vectors of an input's tokens, without what is around them."""
        turns, comma = ByteTurns(), b""
        rows = self.asked.rows(output)
        while few := list(islice(rows, _ROWS)):
            if self.request.encoding_format == "base64":
                yield str(self._in_form(list(chain.from_iterable(few)))).encode()
            else:
                yield comma + encode(few)[1:-1]
                comma = b","
            if turns.is_due(VALUE_BYTES * sum(map(len, few))):
                yield TURN

    def _of_tokens(self, index: int) -> Struct:
        """Return an input's part of the answer, without the vectors of its tokens."""
        return EmbeddingData(index=index, embedding=[])

    def _in_form(self, values: list[float]) -> list[float] | str:
        request = self.request
        if request.encoding_format != "base64":
            return values
        return in_base64(values, request.embed_dtype, request.endianness)


class PoolingWriter(EmbeddingWriter):
    """Vectors of inputs, or lists of the vectors of their tokens, in the shape of /pooling."""

    prefix, envelope = POOLING_ID, PoolingResponse

    def data(self, outputs: Sequence[RequestOutput]) -> Iterator[Struct]:
        """Yield the vector of each input."""
        for index, output in enumerate(outputs):
            yield PoolingData(index=index, data=self._in_form(self.asked.vector(output)))

    def _of_tokens(self, index: int) -> Struct:
        """Return an input's part of the answer, without the vectors of its tokens."""
        return PoolingData(index=index, data=[])


class ClassifyWriter(PooledWriter):
    """The values of all classes, and the name of the likeliest."""

    prefix, envelope = CLASSIFY_ID, ClassifyResponse

    def data(self, outputs: Sequence[RequestOutput]) -> Iterator[Struct]:
        """Yield the classes of each input."""
        for index, output in enumerate(outputs):
            probs = self.asked.vector(output)
            best = max(range(len(probs)), key=probs.__getitem__)
            label = self.labels[best] if best < len(self.labels) else None
            yield ClassifyData(index=index, label=label, probs=probs, num_classes=len(probs))
