"""/generative_scoring: how likely one of some label tokens follows a query and an item."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import exp
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from octavo.api.outputs import RequestOutput
from octavo.core.config import MAX_PRIORITY
from octavo.core.sampling_params import MAX_LOGPROB_IDS
from octavo.dialects.common.dialect import SCORING_ID, error_body
from octavo.dialects.common.schema.completion import PromptTokens
from octavo.dialects.embeddings.inputs import TokenId
from octavo.dialects.embeddings.schema import (
    MAX_DEADLINE_MS,
    PooledUsage,
    ScoreData,
    ScoreResponse,
)
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.schema.prompts import MAX_PROMPTS
from octavo.serving.schema.rules import FieldRules
from octavo.serving.translation import TranslationContext
from octavo.text.pairs import Part
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob, packed

MAX_CHARACTERS = 1 << 25  # of all prompts, each with the query; a token id counts as one
_FIELDS = {"logprob_token_ids": "label_token_ids"}

Labels = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LOGPROB_IDS)]


def _no_item(request: Any) -> list[str]:
    return [""] * len(request.items)


class ScoringRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A query and items, scored by the probability of a token behind both."""

    rules: ClassVar[FieldRules] = FieldRules(
        with_lists=frozenset({"query", "items"}),
        ignored={
            "request_id": "the x-request-id header names a request",
            "user": "the API key identifies the user",
        },
        of_prompts={"query": lambda request: "", "items": _no_item},
        other_names={"documents": "items", "label_tokens": "label_token_ids"},
        other_routes={"queries": "/score", "text_1": "/score"},
    )
    query: str | PromptTokens
    items: Annotated[list[str | PromptTokens], Meta(min_length=1, max_length=MAX_PROMPTS)]
    label_token_ids: Labels
    model: Annotated[str, Meta(max_length=512)] | None = None
    apply_softmax: bool = True  # over the labels; else over the whole vocabulary
    item_first: bool = False  # the prompt is the item and then the query
    add_special_tokens: bool = True  # around the query, if it is a text
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    deadline_ms: Annotated[int, Meta(ge=1, le=MAX_DEADLINE_MS)] | None = None


def translate(context: TranslationContext, request: ScoringRequest) -> GenerationRequest:
    """Return the neutral form: a prompt for each item, of which one token is generated."""
    items = request.items
    total = len(request.query) * len(items) + sum(map(len, items))
    if total > MAX_CHARACTERS:
        raise invalid(
            f"the query beside each of {len(items)} items makes prompts of {total} characters "
            f"together; at most {MAX_CHARACTERS} are accepted: divide the items among requests",
            "items",
        )
    return GenerationRequest(
        prompts=[_prompt(request, item) for item in items],
        sampling={
            "temperature": 0.0,
            "logprob_token_ids": request.label_token_ids,
            "detokenize": False,
        },
        writer=partial(ScoringWriter, request),
        named=_named,
        max_tokens=1,
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
    )


def _prompt(request: ScoringRequest, item: str | list[int]) -> PromptJob | list[int]:
    """Return the prompt of an item; special tokens are put around the query alone."""
    query = request.query
    if isinstance(query, list) and isinstance(item, list):
        return item + query if request.item_first else query + item
    parts = [_part(query, is_framed=request.add_special_tokens), _part(item, is_framed=False)]
    return PromptJob(parts=parts[::-1] if request.item_first else parts)


def _part(given: str | list[int], *, is_framed: bool) -> Part:
    if isinstance(given, str):
        return Part(text=given, is_framed=is_framed)
    return Part(packed_ids=packed(given))


def _named(error: ApiError, index: int) -> ApiError:
    """Return an error of the checks with the name of its field in this request."""
    if error.param in ("prompt", "max_tokens"):  # too long for the one token, or empty
        place = f"items[{index}]"
        return invalid(f"{place}: {error.message}", place, error.code)
    return error.renamed(_FIELDS)


class ScoringWriter(BaseWriter):
    """The scores of the items, in their order."""

    def __init__(
        self, request: ScoringRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        self._request = request
        self._id = f"{SCORING_ID}{exchange.request_id}"
        self._created = exchange.created
        self._model = exchange.model_name

    failure = staticmethod(error_body)

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response; the score is the probability of the first label."""
        data: list[ScoreData] = []
        for index, output in enumerate(outputs):
            data.append(ScoreData(index=index, score=self._score(output)))
            yield TURN
        usage = PooledUsage(
            prompt_tokens=counts.prompt,
            completion_tokens=counts.generated,
            total_tokens=counts.prompt + counts.generated,
        )
        yield encode(
            ScoreResponse(
                id=self._id, created=self._created, model=self._model, data=data, usage=usage
            )
        )

    def _score(self, output: RequestOutput) -> float:
        """Return the first label's probability, among the labels or in the whole vocabulary."""
        (answer,) = output.outputs
        assert answer.logprobs is not None
        found = answer.logprobs[0]
        labels = dict.fromkeys(self._request.label_token_ids)
        logprobs = [found[label].logprob for label in labels]
        if not self._request.apply_softmax:
            return exp(logprobs[0])
        most = max(logprobs)
        return exp(logprobs[0] - most) / sum(exp(each - most) for each in logprobs)
