"""litellm: chat and completions through its `openai` and `hosted_vllm` providers, and errors."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import litellm

URL, FULL, KEY = sys.argv[1:4]
MESSAGES = [{"role": "user", "content": "Hello"}]


def ask(provider: str = "openai", url: str = URL, **fields: Any) -> Any:
    """Send one chat request and return the answer."""
    given: dict[str, Any] = {
        "model": f"{provider}/tiny",
        "messages": MESSAGES,
        "api_base": f"{url}/v1",
    }
    given |= {"api_key": KEY, "max_tokens": 8, "temperature": 0, "num_retries": 0, "timeout": 60}
    return litellm.completion(**{**given, "max_retries": 0, **fields})


def refused(kind: type[Exception], **fields: Any) -> Any:
    """Return the error that a call raises, streamed or not."""
    for stream in (False, True):
        try:
            answer = ask(**fields, stream=stream)
            list(answer)
        except kind as error:
            found = error
        else:
            raise AssertionError(f"{kind.__name__} was expected")
    return found


def check_embeddings() -> None:
    """Embed texts, and bring documents into an order, through its providers for both."""
    to = {"api_base": f"{URL}/v1", "api_key": KEY, "timeout": 60}
    for provider in ("openai", "hosted_vllm"):
        answer = litellm.embedding(f"{provider}/tiny", input=["The quick", "fox"], **to)
        assert [each["index"] for each in answer.data] == [0, 1]
        assert len(answer.data[0]["embedding"]) == 32
    documents = ["A day in the country", "The quick"]
    ranked = litellm.rerank("hosted_vllm/tiny", "The quick", documents, **{**to, "api_base": URL})
    assert [each["index"] for each in ranked.results] == [1, 0]


def main() -> None:
    """Run all checks of this client."""
    check_embeddings()
    for provider in ("openai", "hosted_vllm"):
        answer = ask(provider)
        text = answer.choices[0].message.content
        assert text
        usage = answer.usage
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.prompt_tokens_details.cached_tokens is not None
        parts = list(ask(provider, stream=True, stream_options={"include_usage": True}))
        streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert streamed == text, (streamed, text)
        told = [part.usage for part in parts if getattr(part, "usage", None)]
        assert told[-1].completion_tokens == usage.completion_tokens
        probable = ask(provider, logprobs=True, top_logprobs=2)
        assert len(probable.choices[0].logprobs.content) == usage.completion_tokens
        later = asyncio.run(
            litellm.acompletion(
                model=f"{provider}/tiny",
                messages=MESSAGES,
                api_base=f"{URL}/v1",
                api_key=KEY,
                max_tokens=8,
                temperature=0,
            )
        )
        assert later.choices[0].message.content == text
    extra = ask(top_k=1, extra_body={"min_tokens": 3})
    assert extra.choices[0].message.content

    prompt: dict[str, Any] = {
        "model": "text-completion-openai/tiny",
        "api_base": f"{URL}/v1",
        "api_key": KEY,
    }
    prompt |= {"prompt": "The quick", "max_tokens": 6, "temperature": 0}
    whole = litellm.text_completion(**prompt).choices[0].text
    assert whole
    parts = litellm.text_completion(**prompt, stream=True)
    assert "".join(part.choices[0].text or "" for part in parts) == whole

    assert "gpt-9" in str(refused(litellm.NotFoundError, model="openai/gpt-9"))
    assert refused(litellm.AuthenticationError, api_key="wrong-key").status_code == 401
    assert "temperature" in str(refused(litellm.BadRequestError, temperature=9))
    full = refused(litellm.RateLimitError, url=FULL)
    assert int(full.litellm_response_headers["retry-after"]) >= 1
    print("all is well")


main()
