"""openai: responses that are kept, in the background and continued, files, batches, embeddings."""

from __future__ import annotations

import base64
import json
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
from pydantic import BaseModel

URL, KEY, DIRECTORY = sys.argv[1], sys.argv[2], Path(sys.argv[3])
SHORT: dict[str, Any] = {"model": "tiny", "max_output_tokens": 8, "temperature": 0}
BUSY = ("queued", "in_progress", "validating", "finalizing", "cancelling")


class Fact(BaseModel):
    """The shape of an answer."""

    holds: bool


def operate(command: str) -> None:
    """Send a command to the operators' socket."""
    with socket.socket(socket.AF_UNIX) as operator:
        operator.connect(str(DIRECTORY / "admin"))
        operator.sendall(f"POST {command} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert operator.recv(1 << 16).startswith(b"HTTP/1.1 200")


@contextmanager
def paused() -> Iterator[None]:
    """Pause the engine for as long as the block lasts: nothing ends that has begun in it."""
    operate("/pause")
    yield
    operate("/resume")


def refused(kind: type[openai.APIStatusError], call: Any, *given: Any, **fields: Any) -> Any:
    """Return the error that a call raises."""
    try:
        call(*given, **fields)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def use_responses(client: Any) -> None:
    """Create, stream, parse, retrieve, continue and delete."""
    api = client.responses
    whole = api.create(**SHORT, input="Hello", instructions="Be brief.", metadata={"a": "b"})
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 8
    assert whole.output_text

    events = list(api.create(**SHORT, input="Hello", instructions="Be brief.", stream=True))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text
    with api.stream(**SHORT, input="Hello", instructions="Be brief.") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert text == whole.output_text

    hot: Any = {"model": "tiny", "temperature": 2, "extra_body": {"seed": 1}}
    parsed = api.parse(**hot, input="Hello", text_format=Fact)
    assert isinstance(parsed.output_parsed, Fact), parsed.output_text
    assert parsed.status == "completed"

    kept = api.retrieve(whole.id)
    assert kept.output == whole.output
    assert kept.metadata == {"a": "b"}
    more = api.create(**SHORT, input="And now?", previous_response_id=whole.id)
    items = list(api.input_items.list(more.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    latest = next(iter(api.input_items.list(more.id)))
    assert latest.content[0].text == "And now?"
    api.delete(whole.id)
    assert refused(openai.NotFoundError, api.retrieve, whole.id).code == "response_not_found"
    refused(openai.BadRequestError, api.create, **SHORT, input="x", previous_response_id=whole.id)
    assert api.retrieve(more.id).output == more.output
    unkept = api.create(**SHORT, input="Hello", store=False)
    refused(openai.NotFoundError, api.retrieve, unkept.id)
    wrong = refused(openai.BadRequestError, api.create, **{**SHORT, "temperature": 9}, input="x")
    assert wrong.param == "temperature"


def use_background(client: Any) -> None:
    """Poll, cancel, and read a stream on from where its connection has ended."""
    api = client.responses
    known = api.create(**SHORT, input="Hello")
    queued = api.create(**SHORT, input="Hello", background=True)
    while queued.status in BUSY:
        queued = api.retrieve(queued.id)
    assert queued.output_text == known.output_text

    with paused():
        begun = api.create(**SHORT, input="Hello", background=True)
        assert begun.status in BUSY
        assert api.cancel(begun.id).status == "cancelled"
    assert api.retrieve(begun.id).status == "cancelled"
    refused(openai.BadRequestError, api.cancel, known.id)

    stream = api.create(**SHORT, input="Hello", background=True, stream=True)
    seen = [next(stream) for _ in range(4)]
    stream.close()
    name = seen[0].response.id
    last = seen[-1].sequence_number
    rest = list(api.retrieve(name, stream=True, starting_after=last))
    numbers = [each.sequence_number for each in (*seen, *rest)]
    assert numbers == list(range(len(numbers)))
    text = [e.delta for e in (*seen, *rest) if e.type == "response.output_text.delta"]
    assert "".join(text) == known.output_text
    assert rest[-1].response.status == "incomplete"
    with api.stream(response_id=name, starting_after=last) as again:
        assert [each.sequence_number for each in again] == numbers[len(seen) :]


def use_batches(client: Any) -> None:
    """Store a file, answer it, read the results; cancel a batch."""
    body = {"model": "tiny", "prompt": "The quick", "max_tokens": 4}
    lines = [
        {"custom_id": f"{each}", "method": "POST", "url": "/v1/completions", "body": body}
        for each in range(12)
    ]
    lines[5] = {**lines[5], "body": {**body, "temperature": 9}}
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("requests.jsonl", data), purpose="batch")
    assert client.files.retrieve(file.id).bytes == len(data)
    assert client.files.content(file.id).read() == data
    wanted: Any = {
        "input_file_id": file.id,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    batch = client.batches.create(**wanted, metadata={"a": "b"})
    while batch.status in BUSY:
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (11, 1)
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).iter_lines()]
    assert [each["custom_id"] for each in answers] == [f"{n}" for n in range(12) if n != 5]
    (error,) = client.files.content(batch.error_file_id).text.splitlines()
    assert json.loads(error)["custom_id"] == "5"

    with paused():
        second = client.batches.create(**wanted)
        second = client.batches.cancel(second.id)
        assert second.status in ("cancelling", "cancelled")
    while second.status in BUSY:
        second = client.batches.retrieve(second.id)
    assert second.status == "cancelled"
    assert {each.id for each in client.batches.list()} == {batch.id, second.id}
    assert client.files.delete(file.id).deleted
    refused(openai.NotFoundError, client.files.retrieve, file.id)


def use_embeddings(client: Any) -> None:
    """Compare numbers, numbers that the client decodes, and numbers that it does not."""
    common: Any = {"model": "tiny", "input": ["The quick", "fox"], "dimensions": 8}
    decoded = client.embeddings.create(**common)  # it asks for base64
    listed = client.embeddings.create(**common, encoding_format="float")
    coded: Any = client.embeddings.create(**common, encoding_format="base64")
    for index in (0, 1):
        vector = decoded.data[index].embedding
        raw = base64.b64decode(coded.data[index].embedding)
        assert list(struct.unpack("<8f", raw)) == vector
        near = zip(vector, listed.data[index].embedding, strict=True)
        assert all(abs(one - other) < 1e-6 for one, other in near)
    assert decoded.usage.prompt_tokens == decoded.usage.total_tokens > 0
    refused(openai.BadRequestError, client.embeddings.create, model="tiny", input=[])


def main() -> None:
    """Run all checks of this client."""
    with openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        use_responses(client)
        print("responses are well")
        use_background(client)
        print("the background is well")
        use_batches(client)
        print("batches are well")
        use_embeddings(client)
    print("all is well")


main()
