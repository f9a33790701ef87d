"""/v2/embed: vectors of texts, in the types that Cohere's clients may choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.inputs import check_most, longest_prompt
from octavo.api.pooling.params import PoolingParams
from octavo.api.pooling.tasks import Wanted, wanted
from octavo.dialects.cohere.chat import text_of
from octavo.dialects.cohere.dialect import error_body
from octavo.dialects.cohere.schema import CohereEmbedRequest
from octavo.dialects.common.arrays import encoded_each, errors_at
from octavo.dialects.common.values import in_base64
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.preparation import refusals
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode
from octavo.wire.facts import EngineFacts
from octavo.workers.jobs import PromptJob

# The names that models give their prompts, by the type of the input; the first that is there.
_PROMPT_NAMES = {
    "search_query": ("search_query", "query", "retrieval.query"),
    "search_document": ("search_document", "document", "passage", "retrieval.passage"),
}
_OF_BITS = ("binary", "ubinary")
_BYTE = 8
_SCALE = 127  # a number of a vector of length one is at most 1


def translate(context: TranslationContext, request: CohereEmbedRequest) -> GenerationRequest:
    """Return the neutral form of a request for embeddings, which have length one."""
    texts, name = _texts(request)
    params = PoolingParams(dimensions=request.output_dimension, use_activation=True)
    try:
        with refusals():
            asked = wanted(context.facts, "embed", params)
    except ApiError as error:
        raise error.renamed({"dimensions": "output_dimension"}) from None
    width = asked.width or context.facts.pooling.width
    if width % _BYTE and any(kind in _OF_BITS for kind in request.embedding_types or ()):
        raise invalid(
            f"vectors of {width} numbers do not fill whole bytes with their bits; ask for an "
            f"output_dimension that is a multiple of {_BYTE}",
            "embedding_types",
        )
    prefix = _prefix(context.facts, request.input_type)
    return GenerationRequest(
        prompts=[PromptJob(text=prefix + text, keeps_text=True) for text in texts],
        wants_text=request.texts is not None,
        sampling={"pooling": asked.pooling, "detokenize": False, "temperature": 0.0},
        writer=partial(EmbedWriter, request, asked, len(prefix)),
        named=errors_at(lambda index: f"{name}[{index}]"),
        max_tokens=0,
        keep_tokens=_most_tokens(context.facts, request),
        keeps_end=request.truncate == "START",
        keeps_frame=True,
        priority=request.priority,
    )


def _texts(request: CohereEmbedRequest) -> tuple[list[str], str]:
    """Return the texts, and the field that has them."""
    if (request.texts is None) == (request.inputs is None):
        raise invalid("give either texts, or inputs", "texts")
    if request.texts is not None:
        return request.texts, "texts"
    made = []
    for index, each in enumerate(request.inputs or ()):
        blocks = enumerate(each.content)
        parts = [text_of(block, f"inputs[{index}].content[{place}]") for place, block in blocks]
        made.append("\n".join(parts))
    return made, "inputs"


def _prefix(facts: EngineFacts, input_type: str | None) -> str:
    """Return what the model expects before a text with this use; nothing if it has no prompt."""
    if input_type == "image":
        raise invalid("input_type: this model reads text", "input_type", "unsupported_parameter")
    prompts = facts.pooling.prompts
    if input_type is None:
        return prompts.get(facts.pooling.default_prompt or "", "")
    names = _PROMPT_NAMES.get(input_type, (input_type,))
    return next((prompts[name] for name in names if name in prompts), "")


def _most_tokens(facts: EngineFacts, request: CohereEmbedRequest) -> int | None:
    """Return the tokens that are left of a longer text; None if such a text is refused."""
    longest, most = longest_prompt(facts), request.max_tokens
    if request.truncate == "NONE":
        if most is not None:
            raise invalid("max_tokens cuts texts, which truncate='NONE' forbids", "max_tokens")
        return None
    try:
        with refusals():
            check_most(most, longest, "as many")
    except ApiError:
        return longest
    return longest if most is None else most


class EmbedWriter(BaseWriter):
    """The vectors of all texts, once for each type."""

    def __init__(
        self,
        request: CohereEmbedRequest,
        asked: Wanted,
        prefix_characters: int,
        exchange: Exchange,
        prepared: PreparedRequest,
    ) -> None:
        self._texts: Iterable[str] | None = None
        if request.texts is not None:
            self._texts = (each.text[prefix_characters:] for each in prepared.prompts)
        self._types = list(dict.fromkeys(request.embedding_types or ("float",)))
        self._asked = asked
        self._id = exchange.request_id

    failure = staticmethod(error_body)

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response, each vector encoded alone."""
        yield b'{"id":' + encode(self._id) + b',"embeddings":{'
        for index, kind in enumerate(self._types):
            yield (b"," if index else b"") + encode(kind) + b":["
            yield from encoded_each(self._formed(outputs, _FORMS[kind]))
            yield b"]"
        yield b"},"
        if self._texts is not None:
            yield b'"texts":['
            yield from encoded_each(self._texts)
            yield b"],"
        tokens = {"input_tokens": counts.prompt}
        billed = {**tokens, "image_tokens": 0}
        meta = {"api_version": {"version": "2"}, "billed_units": billed, "tokens": tokens}
        yield encode({"meta": meta, "response_type": "embeddings_by_type"})[1:]

    def _formed(
        self, outputs: Sequence[RequestOutput], form: Callable[[list[float]], Any]
    ) -> Iterable[Any]:
        return (form(self._asked.vector(output)) for output in outputs)


def _in_bytes(values: list[float]) -> list[int]:
    """Return numbers of -1 to 1 as whole ones of -127 to 127."""
    return [max(-_SCALE, min(_SCALE, round(value * _SCALE))) for value in values]


def _bits(values: list[float]) -> list[int]:
    """Return the signs of eight numbers in each byte, the first in the highest bit."""
    signs = [value > 0 for value in values]
    rows = (signs[start : start + _BYTE] for start in range(0, len(signs), _BYTE))
    return [sum(sign << (_BYTE - 1 - place) for place, sign in enumerate(row)) for row in rows]


_FORMS: dict[str, Callable[[list[float]], Any]] = {
    "float": lambda values: values,
    "int8": _in_bytes,
    "uint8": lambda values: [each + 128 for each in _in_bytes(values)],
    "ubinary": _bits,
    "binary": lambda values: [each - 128 for each in _bits(values)],
    "base64": lambda values: in_base64(values, "float32", "little"),
}
