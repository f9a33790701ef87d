"""Vectors as a body of bytes, and their places in it as JSON in the header `metadata`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.tasks import Wanted
from octavo.dialects.common.values import NUMBER_BYTES, in_bytes
from octavo.dialects.embeddings.common import PooledWriter
from octavo.dialects.embeddings.dialect import EMBEDDING_ID, POOLING_ID
from octavo.dialects.embeddings.schema import (
    MAX_DESCRIBED,
    EmbeddingRequest,
    InputRequest,
    PooledUsage,
    PoolingRequest,
)
from octavo.serving.bounds.turns import ByteTurns
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, GenerationRequest, PreparedRequest, TokenCounts
from octavo.transport.errors import invalid
from octavo.transport.exchange import encode

KIND = b"application/octet-stream"
FORMATS = ("bytes", "bytes_only")
_ROWS = 16  # of tokens at once


def check_described(request: InputRequest, asked: GenerationRequest) -> None:
    """Refuse to describe more vectors than clients read in a header."""
    if getattr(request, "encoding_format", None) == "bytes" and len(asked.prompts) > MAX_DESCRIBED:
        raise invalid(
            f"encoding_format='bytes' describes each of {len(asked.prompts)} vectors in a header, "
            f"which has room for {MAX_DESCRIBED}: send fewer inputs, or ask for 'bytes_only', "
            "whose vectors are in the order of the inputs",
            "encoding_format",
        )


class BytesWriter(PooledWriter):
    """The vectors of all inputs, one behind the other; the vectors of tokens as rows."""

    prefix = EMBEDDING_ID
    request: EmbeddingRequest

    def __init__(
        self, request: Any, asked: Wanted, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        if exchange.is_background:  # what it keeps is JSON
            raise invalid(
                "a batch has answers in JSON; ask for encoding_format 'base64' or 'float'",
                "encoding_format",
            )
        super().__init__(request, asked, exchange, prepared)
        if isinstance(request, PoolingRequest):
            self.id = f"{POOLING_ID}{exchange.request_id}"
        self._headers = exchange.extra_headers

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the numbers; add the header that says where those of each input are."""
        request, turns = self.request, ByteTurns()
        places: list[dict[str, Any]] = []
        start = 0
        for index, output in enumerate(outputs):
            rows, num_rows, num_values = self.asked.rows(output), 0, 0
            while few := list(islice(rows, _ROWS)):
                values = list(chain.from_iterable(few))
                num_rows, num_values = num_rows + len(few), num_values + len(values)
                yield in_bytes(values, request.embed_dtype, request.endianness)
                if turns.is_due(len(values) * NUMBER_BYTES["float32"]):
                    yield TURN
            size = num_values * NUMBER_BYTES[request.embed_dtype]
            width = num_values // max(1, num_rows)
            places.append(
                {
                    "index": index,
                    "embed_dtype": request.embed_dtype,
                    "endianness": request.endianness,
                    "start": start,
                    "end": start + size,
                    "shape": [num_rows, width] if self.asked.is_each_token else [width],
                }
            )
            start += size
        if request.encoding_format == "bytes":
            usage = PooledUsage(prompt_tokens=counts.prompt, total_tokens=counts.prompt)
            named = {"id": self.id, "created": self.created, "model": self.model}
            described = encode({**named, "data": places, "usage": usage})
            self._headers.append((b"metadata", described))
