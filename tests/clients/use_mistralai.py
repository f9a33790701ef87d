"""mistralai: texts between others, chats, and errors through its client."""

from __future__ import annotations

import sys
from typing import Any

from mistralai.client import Mistral
from mistralai.client.errors import SDKError

URL, FULL, KEY = sys.argv[1:4]
TEXT = "The quick brown"


def check_texts(client: Mistral) -> None:
    """Check that a stream adds up to the whole answer, and that a seed repeats it."""
    asked: dict[str, Any] = {"model": "tiny", "prompt": TEXT, "max_tokens": 8}
    whole = client.fim.complete(**asked, temperature=0)
    (choice,) = whole.choices
    assert choice.finish_reason == "length"
    assert whole.usage.completion_tokens == 8
    text = ""
    for event in client.fim.stream(**asked, temperature=0):
        text += "".join(each.delta.content or "" for each in event.data.choices)
    assert text == choice.message.content
    assert event.data.usage.completion_tokens == 8
    drawn = [client.fim.complete(**asked, temperature=1, random_seed=7) for _ in range(2)]
    assert drawn[0].choices == drawn[1].choices


def check_chat(client: Mistral) -> None:
    """Check that its chats are those of OpenAI's form."""
    messages: Any = [{"role": "user", "content": TEXT}]
    answer = client.chat.complete(model="tiny", messages=messages, max_tokens=3)
    assert answer.usage.completion_tokens == 3


def failure(url: str, key: str, **fields: Any) -> SDKError:
    """Return the error that a client raises."""
    client = Mistral(api_key=key, server_url=url)
    try:
        client.fim.complete(**{"model": "tiny", "prompt": TEXT, "max_tokens": 1, **fields})
    except SDKError as error:
        return error
    raise AssertionError(f"{fields} was accepted")


def main() -> None:
    """Run all checks against the server."""
    client = Mistral(api_key=KEY, server_url=URL)
    check_texts(client)
    check_chat(client)
    refused = failure(URL, KEY, suffix=" fox")
    assert refused.status_code == 400
    assert "suffix" in str(refused)
    assert failure(FULL, KEY).status_code == 429
    assert failure(URL, "wrong-secret").status_code == 401
    print("all is well")


main()
