"""/embedding and /embeddings in llama-server's shape: a list, with a list of vectors for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from octavo.api.outputs import RequestOutput
from octavo.dialects.common.schema.unsupported import no_text
from octavo.dialects.embeddings.common import (
    PooledWriter,
    input_errors,
    inputs_of,
    pooled_request,
    wanted_of,
)
from octavo.dialects.embeddings.inputs import Input, inputs_schema
from octavo.dialects.embeddings.schema import (
    RULES,
    EmbeddingRequest,
    PooledRequest,
)
from octavo.serving.operation import GenerationRequest, TokenCounts
from octavo.serving.schema.rules import FieldRules
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid, not_yet

_NONE, _EUCLIDEAN = -1, 2


class LlamaEmbeddingRequest(PooledRequest, kw_only=True):
    """The request of /embedding, in llama-server's shape."""

    schema: ClassVar[dict[str, Any]] = {
        "oneOf": [
            {"required": [name], **inputs_schema(name), "not": {"required": [other]}}
            for name, other in (("content", "input"), ("input", "content"))
        ]
    }
    rules: ClassVar[FieldRules] = replace(
        RULES,
        with_lists=frozenset({"content", "input"}),
        of_prompts={name: no_text(name) for name in ("content", "input")},
        other_names={"prompt": "content", "inputs": "content", "texts": "content"},
    )
    content: Input | None = None
    input: Input | None = None  # the same
    embd_normalize: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = _EUCLIDEAN


class LlamaEmbedding(Struct, kw_only=True):
    """One text's vector in a list of its own, or the vectors of its tokens."""

    index: int
    embedding: list[list[float]]


class LlamaEmbeddingResponse(Struct, kw_only=True):
    """The response of /embedding, which is a list."""

    schema: ClassVar[dict[str, Any]] = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["index", "embedding"],
            "properties": {
                "index": {"type": "integer"},
                "embedding": {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "number"}},
                },
            },
        },
    }


def embedding(context: TranslationContext, request: LlamaEmbeddingRequest) -> GenerationRequest:
    """Return the neutral form of a request for the vectors of texts."""
    given, name = request.content, "content"
    if given is None:
        given, name = request.input, "input"
    if given is None or (request.content is not None and request.input is not None):
        raise invalid("give content, a text or a list of texts", "content")
    if request.embd_normalize not in (_NONE, _EUCLIDEAN):
        raise not_yet("embd_normalize", "a vector has the length 1 (2), or its own (-1)")
    is_each_token = context.facts.pooling.default_task == "token_embed"
    activation = request.use_activation
    if activation is None and (is_each_token or request.embd_normalize == _NONE):
        activation = False
    same = EmbeddingRequest(
        input=given,
        use_activation=activation,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
    )
    try:
        asked = wanted_of(context, "token_embed" if is_each_token else "embed", same)
        prompts = inputs_of(context, same)
    except ApiError as error:
        raise error.renamed({"input": name}) from None
    named = input_errors(same)
    return pooled_request(
        context,
        same,
        prompts,
        asked,
        LlamaEmbeddingWriter,
        lambda error, index: named(error, index).renamed({"input": name}),
    )


class LlamaEmbeddingWriter(PooledWriter):
    """Vectors as a list of objects."""

    prefix = ""

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the list, each object encoded alone."""
        yield b"["
        yield from self.parts(outputs)
        yield b"]"

    def data(self, outputs: Sequence[RequestOutput]) -> Iterator[Struct]:
        """Yield the object of each input."""
        for index, output in enumerate(outputs):
            yield LlamaEmbedding(index=index, embedding=[*self.asked.rows(output)])
