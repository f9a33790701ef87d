"""OpenAI's own client on a real socket: files, batches, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest

from tests.server.batches.make import ids, request, text_of
from tests.server.make import LIMIT, listening


def test_the_client_stores_begins_and_reads(directory: Path, tmp_path: Path) -> None:
    with (
        listening(directory, batch_dir=tmp_path / "batches") as life,
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{life.port}/v1",
            api_key="none",
            max_retries=0,
            timeout=LIMIT,
            _strict_response_validation=True,
        ) as client,
    ):
        data = text_of([request(each) for each in range(12)]).encode()
        file = client.files.create(file=("a.jsonl", data), purpose="batch")
        assert (file.bytes, file.filename, file.purpose) == (len(data), "a.jsonl", "batch")
        assert client.files.content(file.id).read() == data
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
            metadata={"for": "the test"},
        )
        while batch.status in ("validating", "in_progress", "finalizing"):
            batch = client.batches.retrieve(batch.id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert (batch.request_counts.total, batch.request_counts.completed) == (12, 12)
        assert batch.output_file_id is not None
        text = client.files.content(batch.output_file_id).text
        lines = [json.loads(line) for line in text.splitlines()]
        assert ids(lines) == [f"line-{each}" for each in range(12)]
        for line in lines:
            assert openai.types.Completion.model_validate(line["response"]["body"]).choices
        assert [each.id for each in client.batches.list(limit=1)] == [batch.id]
        assert {each.id for each in client.files.list()} == {file.id, batch.output_file_id}
        assert [each.id for each in client.files.list(purpose="batch")] == [file.id]
        assert client.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(batch.id)
        with pytest.raises(openai.BadRequestError) as refused:
            client.files.create(file=("a.jsonl", data), purpose="fine-tune")
        assert refused.value.param == "purpose"
