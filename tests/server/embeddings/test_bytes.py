"""Vectors in a body of bytes are those in JSON, and the header says where each of them is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.dialects.embeddings.schema import MAX_DESCRIBED
from octavo.model_facts import PoolingFacts
from tests.server.embeddings.make import run
from tests.server.engine import WIDTH
from tests.server.make import Client

EMBEDDER = PoolingFacts(width=WIDTH)
MANY = [[5, 6, 7], [9], [5, 6]]


@pytest.mark.parametrize(
    ("path", "name", "fields"),
    [
        ("/v1/embeddings", "embedding", {}),
        ("/v1/embeddings", "embedding", {"dimensions": 3}),
        ("/pooling", "data", {}),
        ("/pooling", "data", {"task": "token_embed"}),
    ],
)
@pytest.mark.parametrize(
    ("kind", "order", "dtype", "tolerance"),
    [("float32", "native", "=f4", 1e-7), ("float16", "big", ">f2", 1e-3)],
)
def test_bytes_are_the_numbers_of_the_json(
    directory: Path,
    path: str,
    name: str,
    fields: dict[str, Any],
    kind: str,
    order: str,
    dtype: str,
    tolerance: float,
) -> None:
    async def test(client: Client) -> None:
        body = {"input": MANY, **fields}
        expected = (await client.post(path, json=body)).json()
        body |= {"encoding_format": "bytes", "embed_dtype": kind, "endianness": order}
        answer = await client.post(path, json=body)
        assert answer.headers["content-type"] == "application/octet-stream"
        described = msgspec.json.decode(answer.headers["metadata"])
        assert described.keys() == expected.keys() - {"object"}
        assert (described["model"], described["usage"]) == (expected["model"], expected["usage"])
        assert described["id"].partition("-")[0] == expected["id"].partition("-")[0]
        last = 0
        for index, each in enumerate(described["data"]):
            assert (each["index"], each["embed_dtype"], each["endianness"]) == (index, kind, order)
            assert each["start"] == last
            last = each["end"]
            found = np.frombuffer(answer.content[each["start"] : last], dtype)
            wanted = expected["data"][index][name]
            np.testing.assert_allclose(found.reshape(each["shape"]), wanted, rtol=0, atol=tolerance)
        assert last == len(answer.content)
        alone = await client.post(path, json={**body, "encoding_format": "bytes_only"})
        assert alone.content == answer.content
        assert "metadata" not in alone.headers

    run(directory, test, EMBEDDER)


def test_a_header_describes_no_more_than_clients_read(directory: Path) -> None:
    async def test(client: Client) -> None:
        body = {"input": [[5]] * MAX_DESCRIBED, "encoding_format": "bytes"}
        answer = await client.post("/v1/embeddings", json=body)
        assert answer.status_code == 200
        assert len(answer.headers["metadata"]) < 1 << 16
        body["input"] = [[5]] * (MAX_DESCRIBED + 1)
        refused = await client.post("/v1/embeddings", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "encoding_format"
        body["encoding_format"] = "bytes_only"
        assert (await client.post("/v1/embeddings", json=body)).status_code == 200

    run(directory, test, EMBEDDER)
