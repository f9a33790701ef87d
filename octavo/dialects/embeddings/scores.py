"""/score and /rerank: how well texts fit each other, by a cross-encoder or by embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.inputs import pairs_of
from octavo.api.pooling.served import is_cross_encoder
from octavo.api.pooling.tasks import Wanted
from octavo.dialects.common.arrays import errors_at
from octavo.dialects.embeddings.common import PooledWriter, Prompts, pooled_request, wanted_of
from octavo.dialects.embeddings.dialect import RERANK_ID, SCORE_ID
from octavo.dialects.embeddings.schema import (
    PAIRED,
    CohereRerankRequest,
    PooledRequest,
    PooledUsage,
    RerankMeta,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankText,
    ScoreData,
    ScoreRequest,
    ScoreResponse,
)
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.preparation import refusals
from octavo.serving.schema.prompts import MAX_PROMPTS
from octavo.serving.translation import TranslationContext
from octavo.text.pairs import Pair
from octavo.transport.errors import invalid
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob

_ALWAYS_LISTS = ("documents", "texts")
Places = list[tuple[int, int]]  # of both texts of each pair


def score(context: TranslationContext, request: ScoreRequest) -> GenerationRequest:
    """Return the neutral form of a request for scores."""
    given = {name for names in PAIRED for name in names if getattr(request, name) is not None}
    names = next((names for names in PAIRED if given and given.issubset(names)), None)
    if names is None:
        raise invalid("give the texts in one pair of fields: text_1 and text_2", "text_1")
    fields: list[list[str]] = []
    for name in names:
        texts = getattr(request, name)
        if texts is None:
            raise invalid(f"{name} is missing; {' and '.join(names)} are compared", name)
        fields.append([texts] if isinstance(texts, str) else texts)
    first, second = fields
    return compared(context, request, first, second, names, ScoreWriter)


def rerank(context: TranslationContext, request: RerankRequest) -> GenerationRequest:
    """Return the neutral form of a request for the order of documents."""
    texts = [each if isinstance(each, str) else each.text for each in request.documents]
    names = "query", "documents"
    return compared(context, request, [request.query], texts, names, RerankWriter)


def compared(
    context: TranslationContext,
    request: ScoreRequest | RerankRequest,
    first: list[str],
    second: list[str],
    names: tuple[str, str],
    writer: Callable[..., ScoreWriter],
) -> GenerationRequest:
    """Return a request for the scores of pairs: a prompt each, or embeddings that are compared."""
    with refusals():
        places = pairs_of(first, second, names)
    facts = context.facts
    prompts = Prompts()
    if is_cross_encoder(facts):
        instruction = request.instruction or facts.pooling.instruction or None
        for place, other in places:
            pair = Pair(
                query=first[place],
                document=second[other],
                query_tokens=request.max_tokens_per_query or None,
                document_tokens=request.max_tokens_per_doc or None,
                instruction=instruction,
                template=context.chat_template,
                form=facts.pooling.pair_form,
            )
            prompts.append(PromptJob(pair=pair))
        asked = wanted_of(context, "classify", request)
        made = partial(writer, None)
        named = errors_at(_place(names, 0, len(second)))
        return pooled_request(context, request, prompts, asked, made, named)
    if request.instruction is not None:
        raise invalid(
            "instruction is for models that read both texts at once; this one compares "
            "embeddings: put it before the query",
            "instruction",
        )
    if len(first) + len(second) > MAX_PROMPTS:
        raise invalid(
            f"{len(first) + len(second)} texts are to be embedded; at most {MAX_PROMPTS} are "
            "accepted: divide them among requests",
            names[1],
        )
    asked = wanted_of(context, "embed", request)
    cuts = request.max_tokens_per_query or None, request.max_tokens_per_doc or None
    for texts, most in zip((first, second), cuts, strict=True):
        prompts += [PromptJob(text=text, text_tokens=most) for text in texts]
    shifted = [(place, len(first) + other) for place, other in places]
    made = partial(writer, shifted)
    named = errors_at(_place(names, len(first), len(second)))
    return pooled_request(context, request, prompts, asked, made, named)


def _place(names: tuple[str, str], num_first: int, num_second: int) -> Callable[[int], str]:
    """Return what names the field of a prompt; pairs are named by their second text."""

    def named(index: int) -> str:
        name, at, count = names[0], index, num_first
        if index >= num_first:
            name, at, count = names[1], index - num_first, num_second
        return f"{name}[{at}]" if count > 1 or name in _ALWAYS_LISTS else name

    return named


class ScoreWriter(PooledWriter):
    """Scores in the order of the pairs."""

    prefix, envelope = SCORE_ID, ScoreResponse

    def __init__(
        self,
        places: Places | None,
        request: PooledRequest,
        asked: Wanted,
        exchange: Exchange,
        prepared: PreparedRequest,
    ) -> None:
        super().__init__(request, asked, exchange, prepared)
        self._places = places  # of embeddings to compare; None: each prompt has its score

    def data(self, outputs: Sequence[RequestOutput]) -> Iterator[Struct]:
        """Yield the score of each pair."""
        for index, value in enumerate(self.values(outputs)):
            yield ScoreData(index=index, score=value)

    def values(self, outputs: Sequence[RequestOutput]) -> Iterator[float]:
        """Yield the score of each pair, as a number."""
        if self._places is None:
            for output in outputs:
                yield self.asked.vector(output)[0]
            return
        place, first = -1, list[float]()
        for one, other in self._places:
            if one != place:
                place, first = one, self.asked.vector(outputs[one])
            yield self.asked.similarity(first, self.asked.vector(outputs[other]))


class RerankWriter(ScoreWriter):
    """Documents in the order of their relevance."""

    prefix = RERANK_ID
    request: RerankRequest

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response with the most relevant documents first."""
        results: list[RerankResult] = []
        for index, value in enumerate(self.values(outputs)):
            results.append(RerankResult(index=index, relevance_score=value))
            yield TURN
        results.sort(key=lambda result: -result.relevance_score)
        response = RerankResponse(
            id=self.id,
            model=self.model,
            results=results[: self.request.top_n or None],
            usage=PooledUsage(prompt_tokens=counts.prompt, total_tokens=counts.prompt),
        )
        if self.request.return_documents:
            for result in response.results:
                given = self.request.documents[result.index]
                result.document = RerankText(text=given) if isinstance(given, str) else given
        if isinstance(self.request, CohereRerankRequest):
            response.meta = RerankMeta(
                api_version={"version": "2"},
                billed_units={"search_units": 1},
                tokens={"input_tokens": counts.prompt},
            )
        yield encode(response)
