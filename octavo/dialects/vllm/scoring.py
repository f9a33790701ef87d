"""/generative_scoring: how likely one of some label tokens follows a query and an item."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import exp
from typing import Any

from octavo.api.outputs import RequestOutput
from octavo.dialects.embeddings.schema import PooledUsage, ScoreData, ScoreResponse
from octavo.dialects.openai.dialect import SCORING_ID, error_body
from octavo.dialects.vllm.schema import ScoringRequest
from octavo.serving.answers.whole import WholeWriter
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.translation import TranslationContext
from octavo.text.pairs import Part
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode
from octavo.workers.jobs import PromptJob, packed

MAX_CHARACTERS = 1 << 25  # of all prompts, each with the query; a token id counts as one
_FIELDS = {"logprob_token_ids": "label_token_ids"}


def translate(context: TranslationContext, request: ScoringRequest) -> GenerationRequest:
    """Return the neutral form: a prompt for each item, of which one token is generated."""
    context.check_model(request.model)
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
    error.param = _FIELDS.get(error.param or "", error.param)
    if error.param in ("prompt", "max_tokens"):  # too long for the one token, or empty
        place = f"items[{index}]"
        return invalid(f"{place}: {error.message}", place, error.code)
    error.message = error.message.replace("logprob_token_ids", "label_token_ids")
    return error


class ScoringWriter(WholeWriter):
    """The scores of the items, in their order."""

    def __init__(
        self, request: ScoringRequest, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        self._request = request
        self._id = f"{SCORING_ID}{exchange.request_id}"
        self._created = exchange.created
        self._model = exchange.server.model_name

    def failure(self, error: ApiError) -> bytes:
        """Return the body of an error."""
        return error_body(error)

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterator[bytes]:
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
