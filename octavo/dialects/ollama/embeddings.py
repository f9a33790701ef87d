"""/api/embed and the older /api/embeddings: vectors of texts, in Ollama's dialect."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.inputs import most_tokens, prefix_of
from octavo.api.pooling.params import TO_FIT, PoolingParams
from octavo.api.pooling.tasks import Wanted, wanted
from octavo.dialects.common.arrays import encoded_each, errors_at
from octavo.dialects.ollama.dialect import error_body
from octavo.dialects.ollama.schema import OllamaEmbeddingRequest, OllamaEmbedRequest
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.preparation import refusals
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob

_NANOSECONDS = 10**9


def translate_embed(context: TranslationContext, request: OllamaEmbedRequest) -> GenerationRequest:
    """Return the neutral form of a request for the vectors of texts, which have length one."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    if not texts:
        raise invalid("input is an empty list; give at least one text", "input")
    params = PoolingParams(dimensions=request.dimensions, use_activation=True)
    cuts = request.truncate is not False
    place = "input" if isinstance(request.input, str) else "input[{index}]"
    return _translated(context, texts, params, place, cuts=cuts, is_old=False)


def translate_embedding(
    context: TranslationContext, request: OllamaEmbeddingRequest
) -> GenerationRequest:
    """Return the neutral form of a request for one vector, as the model's makers intend it."""
    return _translated(context, [request.prompt], PoolingParams(), "prompt", cuts=True, is_old=True)


def _translated(
    context: TranslationContext,
    texts: list[str],
    params: PoolingParams,
    place: str,
    *,
    cuts: bool,
    is_old: bool,
) -> GenerationRequest:
    facts = context.facts
    with refusals():
        asked = wanted(facts, "embed", params)
        prefix = prefix_of(facts, None)
    return GenerationRequest(
        prompts=[PromptJob(text=prefix + text) for text in texts],
        sampling={"pooling": asked.pooling, "detokenize": False, "temperature": 0.0},
        writer=partial(EmbedWriter, asked, is_old),
        named=errors_at(lambda index: place.format(index=index)),
        max_tokens=0,
        keep_tokens=most_tokens(facts, TO_FIT) if cuts else None,
        keeps_end=False,
        keeps_frame=True,
    )


class EmbedWriter(BaseWriter):
    """The vectors of all texts, in one body."""

    def __init__(
        self, asked: Wanted, is_old: bool, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        self._asked = asked
        self._is_old = is_old
        self._model = exchange.model_name
        self._clock, self._began = exchange.server.clock, exchange.began

    failure = staticmethod(error_body)

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response, each vector encoded alone."""
        if self._is_old:
            yield encode({"embedding": self._asked.vector(outputs[0])})
            return
        yield b'{"model":' + encode(self._model) + b',"embeddings":['
        yield from encoded_each(map(self._asked.vector, outputs))
        numbers = {
            "total_duration": max(0, round((self._clock() - self._began) * _NANOSECONDS)),
            "load_duration": 0,
            "prompt_eval_count": counts.prompt,
        }
        yield b"]," + encode(numbers)[1:]
