"""huggingface_hub: texts through the routes of text-generation-inference, and errors."""

from __future__ import annotations

import sys
from typing import Any

from huggingface_hub import InferenceClient, constants
from huggingface_hub.errors import (
    HfHubHTTPError,
    OverloadedError,
    TextGenerationError,
    ValidationError,
)

URL, FULL, KEY = sys.argv[1:4]
constants.HF_HUB_OFFLINE = False  # by which its client refuses any server, also this one
TEXT = "The quick brown"


def check_texts(client: InferenceClient) -> None:
    """Check that a stream adds up to the whole answer, and that the details belong to it."""
    asked: dict[str, Any] = {"max_new_tokens": 8}
    text = client.text_generation(TEXT, **asked)
    assert "".join(client.text_generation(TEXT, **asked, stream=True)) == text
    assert client.text_generation(TEXT, **asked, return_full_text=True) == TEXT + text
    whole = client.text_generation(TEXT, **asked, details=True, decoder_input_details=True)
    assert whole.generated_text == text
    assert whole.details is not None
    assert whole.details.finish_reason == "length"
    assert "".join(each.text for each in whole.details.tokens) == text
    assert "".join(each.text for each in whole.details.prefill) == TEXT
    *_, last = client.text_generation(TEXT, **asked, details=True, stream=True)
    assert last.generated_text == text
    assert last.details is not None
    assert last.details.generated_tokens == 8
    drawn = [client.text_generation(TEXT, **asked, do_sample=True, seed=7) for _ in range(2)]
    assert drawn[0] == drawn[1]


def check_chat(client: InferenceClient) -> None:
    """Check that the name that this client's users give to any model is the served one."""
    messages = [{"role": "user", "content": TEXT}]
    answer = client.chat_completion(messages, model="tgi", max_tokens=3)
    assert answer.model == "tiny"
    assert answer.usage.completion_tokens == 3


def failure(url: str, key: str, **asked: Any) -> Exception:
    """Return the error that a client raises."""
    try:
        InferenceClient(url, token=key).text_generation(TEXT, **asked)
    except (HfHubHTTPError, TextGenerationError) as error:
        return error
    raise AssertionError(f"{asked} was accepted")


def check_errors() -> None:
    """Check that errors are those that the client knows."""
    refused = failure(URL, KEY, max_new_tokens=10**6)
    assert isinstance(refused, ValidationError)
    assert "max_new_tokens" in str(refused)
    assert isinstance(failure(FULL, KEY, max_new_tokens=1), OverloadedError)
    unknown = failure(URL, "wrong-secret", max_new_tokens=1)
    assert not isinstance(unknown, ValidationError)
    assert "the API key is wrong" in str(unknown)


def main() -> None:
    """Run all checks against the server."""
    check_texts(InferenceClient(URL, token=KEY))
    check_chat(InferenceClient(base_url=URL, api_key=KEY))
    check_errors()
    print("all is well")


main()
