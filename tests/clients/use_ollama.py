"""ollama: both routes, whole and in lines, shapes, models, refusals, sync and async."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import ollama

URL, FULL, KEY = sys.argv[1:4]
HELLO = [{"role": "user", "content": "Hello"}]
SHORT = {"num_predict": 8, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


def client_of(url: str, key: str = KEY) -> ollama.Client:
    """Return a client with a key."""
    return ollama.Client(host=url, headers={"authorization": f"Bearer {key}"})


def refused(status: int, ask: Any, **fields: Any) -> ollama.ResponseError:
    """Return the error that a call raises."""
    found: ollama.ResponseError | None = None
    try:
        answer = ask(**fields)
        if fields.get("stream"):
            list(answer)
    except ollama.ResponseError as error:
        found = error
    assert found is not None, f"{status} was expected"
    assert found.status_code == status, found
    return found


def main() -> None:
    """Run all checks of this client."""
    client = client_of(URL)
    (model,) = client.list().models
    assert model.model == "tiny"
    (running,) = client.ps().models
    assert running.context_length
    assert running.digest == model.digest
    shown = client.show("tiny")
    assert "completion" in (shown.capabilities or ())
    assert shown.modelinfo

    whole = client.chat("tiny", HELLO, options=SHORT)
    assert whole.message.content
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 8)
    assert whole.prompt_eval_count
    parts = list(client.chat("tiny:latest", HELLO, options=SHORT, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].eval_count == 8
    assert parts[-1].total_duration

    generated = client.generate("tiny", "The quick", options=SHORT, raw=True)
    lines = list(client.generate("tiny", "The quick", options=SHORT, raw=True, stream=True))
    assert "".join(line.response or "" for line in lines) == generated.response
    assert client.generate("tiny", keep_alive="5m").done_reason == "load"

    shaped = client.chat("tiny", HELLO, format=SCHEMA, options={"temperature": 0})
    assert isinstance(json.loads(shaped.message.content or "")["a"], bool)

    texts = ["The quick", "fox"]
    embedded = client.embed("tiny", texts, dimensions=8)
    assert [len(vector) for vector in embedded.embeddings] == [8, 8]
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-5 for vector in embedded.embeddings)
    assert embedded.prompt_eval_count
    (alone,) = client.embed("tiny", texts[0]).embeddings
    older = client.embeddings("tiny", texts[0]).embedding
    assert len(older) == len(alone) == 32
    listed = client.chat("tiny", HELLO, format="json", options={"temperature": 0, "seed": 4})
    assert listed.message.content is not None
    assert listed.message.content.startswith(("{", "["))

    missing = refused(404, client.chat, model="llama3", messages=HELLO)
    assert "llama3" in missing.error
    refused(404, client.chat, model="llama3", messages=HELLO, stream=True)
    refused(400, client.chat, model="tiny", messages=HELLO, options={"temperature": -1.0})
    refused(400, client.pull, model="llama3")
    assert "'tiny', and no other" in refused(400, client.pull, model="llama3").error
    assert client.pull("tiny").status == "success"
    assert [part.status for part in client.pull("tiny:latest", stream=True)] == ["success"]
    assert (model.details and model.details.quantization_level) == "F32"
    refused(400, client.create, model="mine", from_="tiny")
    refused(400, client.delete, model="tiny")
    refused(401, client_of(URL, "wrong-key").list)
    refused(429, client_of(FULL).generate, model="tiny", prompt="The quick")

    async def use() -> None:
        both = ollama.AsyncClient(host=URL, headers={"authorization": f"Bearer {KEY}"})
        text = ""
        async for part in await both.chat("tiny", HELLO, options=SHORT, stream=True):
            text += part.message.content or ""
        assert text == whole.message.content

    asyncio.run(use())
    sys.stdout.write("all is well\n")


main()
