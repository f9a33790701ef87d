"""langchain-openai: chat, streams, batches, log-probabilities, embeddings, errors."""

from __future__ import annotations

import asyncio
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

URL, FULL, KEY = sys.argv[1:4]
MESSAGES = [SystemMessage("Be brief."), HumanMessage("Hello"), AIMessage("Yes"), HumanMessage("?")]


def chat(url: str = URL, key: str = KEY, **options: object) -> ChatOpenAI:
    """Return langchain's model object for the server."""
    return ChatOpenAI(
        **{
            "base_url": f"{url}/v1",
            "api_key": key,
            "model": "tiny",
            "max_tokens": 8,
            "temperature": 0,
            "max_retries": 0,
            "timeout": 60,
            **options,
        }
    )


def refused(kind: type[openai.APIStatusError], model: ChatOpenAI) -> openai.APIStatusError:
    """Return the error that a call raises, streamed or not."""
    for call in (lambda: model.invoke("x"), lambda: list(model.stream("x"))):
        try:
            call()
        except kind as error:
            found = error
        else:
            raise AssertionError(f"{kind.__name__} was expected")
    return found


def main() -> None:
    """Run all checks of this client."""
    answer = chat().invoke(MESSAGES)
    assert isinstance(answer.content, str)
    assert answer.content
    assert answer.response_metadata["finish_reason"] in ("length", "stop")
    usage = answer.usage_metadata
    assert usage is not None
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_token_details"].keys() >= {"cache_read"}
    assert usage["output_token_details"]["reasoning"] == 0

    parts = list(chat(stream_usage=True).stream(MESSAGES))
    assert "".join(part.content for part in parts) == answer.content
    assert (
        sum(part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata)
        == (usage["output_tokens"])
    )

    told = chat(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    content = told.response_metadata["logprobs"]["content"]
    assert len(content) == usage["output_tokens"]
    assert len(content[0]["top_logprobs"]) == 2

    several = chat(n=2, temperature=1, seed=3).generate([MESSAGES])
    assert len(several.generations[0]) == 2
    batch = chat().batch([MESSAGES, MESSAGES])
    assert [each.content for each in batch] == [answer.content] * 2
    later = asyncio.run(chat().ainvoke(MESSAGES))
    assert later.content == answer.content

    text = OpenAI(base_url=f"{URL}/v1", api_key=KEY, model="tiny", max_tokens=6, temperature=0)
    whole = text.invoke("The quick")
    assert whole
    assert "".join(text.stream("The quick")) == whole

    embeddings = OpenAIEmbeddings(
        base_url=f"{URL}/v1",
        api_key=KEY,
        model="tiny",
        dimensions=16,
        check_embedding_ctx_length=False,  # else it loads a tokenizer of OpenAI's models
    )
    vectors = embeddings.embed_documents(["The quick", "brown fox"] * 600)  # in several requests
    assert len(vectors) == 1200
    assert {len(vector) for vector in vectors} == {16}
    assert vectors[0] == embeddings.embed_query("The quick")
    assert asyncio.run(embeddings.aembed_query("brown fox")) == vectors[1]

    missing = refused(openai.NotFoundError, chat(model="gpt-9"))
    assert missing.code == "model_not_found"
    assert refused(openai.AuthenticationError, chat(key="wrong-key")).code == "invalid_api_key"
    assert refused(openai.BadRequestError, chat(temperature=9)).param == "temperature"
    full = refused(openai.RateLimitError, chat(FULL))
    assert int(full.response.headers["retry-after"]) >= 1
    print("all is well")


main()
