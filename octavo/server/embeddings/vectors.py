"""/v1/embeddings, /pooling and /classify: what a model makes of each text on its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.tasks import Task
from octavo.server.embeddings.common import (
    PooledWriter,
    input_place,
    inputs_of,
    pooled_request,
    wanted_of,
)
from octavo.server.embeddings.dialect import CLASSIFY_ID, EMBEDDING_ID, POOLING_ID
from octavo.server.embeddings.schema import (
    ClassifyData,
    ClassifyRequest,
    ClassifyResponse,
    EmbeddingData,
    EmbeddingRequest,
    EmbeddingResponse,
    InputRequest,
    PooledUsage,
    PoolingData,
    PoolingRequest,
    PoolingResponse,
)
from octavo.server.embeddings.values import in_base64
from octavo.server.operation import GenerationRequest
from octavo.server.server import Server


def embeddings(server: Server, request: EmbeddingRequest) -> GenerationRequest:
    """Return the neutral form of a request for embeddings."""
    return _translated(server, request, "embed", EmbeddingWriter)


def pooling(server: Server, request: PoolingRequest) -> GenerationRequest:
    """Return the neutral form of a request for what a task makes of texts."""
    task: Task | None = request.task
    if task is None:
        task = "embed" if "embed" in server.llm.facts.pooling.tasks else "classify"
    return _translated(server, request, task, PoolingWriter)


def classify(server: Server, request: ClassifyRequest) -> GenerationRequest:
    """Return the neutral form of a request for the classes of texts."""
    return _translated(server, request, "classify", ClassifyWriter)


def _translated(
    server: Server, request: InputRequest, task: Task, writer: type[PooledWriter]
) -> GenerationRequest:
    server.check_model(request.model)
    asked = wanted_of(server, task, request)
    prompts = inputs_of(server, request)
    return pooled_request(server, request, prompts, asked, writer, input_place(request))


class EmbeddingWriter(PooledWriter):
    """Embeddings, as lists of numbers or in base64."""

    prefix = EMBEDDING_ID
    request: EmbeddingRequest

    def data(self, outputs: Sequence[RequestOutput]) -> Iterator[Struct]:
        """Yield the embedding of each input."""
        for index, output in enumerate(outputs):
            yield EmbeddingData(index=index, embedding=self._in_form(self.asked.vector(output)))

    def _in_form(self, values: list[float]) -> list[float] | str:
        request = self.request
        if request.encoding_format != "base64":
            return values
        return in_base64(values, request.embed_dtype, request.endianness)

    def response(self, usage: PooledUsage) -> Struct:
        """Return the response with all embeddings."""
        return EmbeddingResponse(
            id=self.id, created=self.created, model=self.model, data=[], usage=usage
        )


class PoolingWriter(EmbeddingWriter):
    """Vectors of inputs, or lists of the vectors of their tokens."""

    prefix = POOLING_ID

    def data(self, outputs: Sequence[RequestOutput]) -> Iterator[Struct]:
        """Yield the vector of each input, or those of its tokens."""
        is_each_token = self.asked.pooling.kind == "all"
        for index, output in enumerate(outputs):
            rows = self.asked.rows(output)
            if not is_each_token:
                yield PoolingData(index=index, data=self._in_form(rows[0]))
            elif self.request.encoding_format == "base64":
                values = [value for row in rows for value in row]
                yield PoolingData(index=index, data=self._in_form(values))
            else:
                yield PoolingData(index=index, data=rows)

    def response(self, usage: PooledUsage) -> Struct:
        """Return the response with all vectors."""
        return PoolingResponse(
            id=self.id, created=self.created, model=self.model, data=[], usage=usage
        )


class ClassifyWriter(PooledWriter):
    """The values of all classes, and the name of the likeliest."""

    prefix = CLASSIFY_ID

    def data(self, outputs: Sequence[RequestOutput]) -> Iterator[Struct]:
        """Yield the classes of each input."""
        for index, output in enumerate(outputs):
            probs = self.asked.vector(output)
            best = max(range(len(probs)), key=probs.__getitem__)
            label = self.labels[best] if best < len(self.labels) else None
            yield ClassifyData(index=index, label=label, probs=probs, num_classes=len(probs))

    def response(self, usage: PooledUsage) -> Struct:
        """Return the response with the classes of all inputs."""
        return ClassifyResponse(
            id=self.id, created=self.created, model=self.model, data=[], usage=usage
        )
