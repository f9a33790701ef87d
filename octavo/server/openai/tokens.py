"""The routes /tokenize and /detokenize, which do not run the model."""

from __future__ import annotations

from octavo.server.generate import admitted
from octavo.server.http.errors import ApiError, invalid
from octavo.server.http.exchange import Exchange
from octavo.server.in_pieces import decoded, in_pieces
from octavo.server.openai.conversation import conversation_job, with_own_field
from octavo.server.openai.schema.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from octavo.text.prompt_worker import PromptJob


async def tokenize(exchange: Exchange) -> None:
    """Return the token ids of a text or of a conversation."""
    async with admitted(exchange):
        request = await exchange.read(TokenizeRequest)
        server = exchange.server
        server.check_model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise invalid("give either prompt or messages", "prompt")
        if request.prompt is None:
            job = conversation_job(request, server.config)
        else:
            special = request.add_special_tokens is not False
            job = PromptJob(text=request.prompt, add_special_tokens=special)
        try:
            prepared = await server.prompt_pool.prepare(job, exchange.owner)
        except ApiError as error:
            raise with_own_field(error) from None
        model = server.llm.model
        strings: list[str] | None = None
        if request.return_token_strs:
            strings = []
            async for piece in in_pieces(prepared.token_ids):
                strings.extend(model.tokenizer.id_to_token(token) or "" for token in piece)
        await exchange.respond_json(
            TokenizeResponse(
                count=len(prepared.token_ids),
                max_model_len=model.facts.longest_tokens,
                tokens=prepared.token_ids,
                token_strs=strings,
            )
        )


async def detokenize(exchange: Exchange) -> None:
    """Return the text of token ids."""
    async with admitted(exchange):
        request = await exchange.read(DetokenizeRequest)
        server = exchange.server
        server.check_model(request.model)
        facts = server.llm.facts
        limit = 4 * facts.max_model_len
        if len(request.tokens) > limit:
            raise invalid(
                f"{len(request.tokens)} tokens are more than the limit of {limit}", "tokens"
            )
        highest = max(request.tokens, default=0)
        if highest >= facts.vocabulary:
            raise invalid(
                f"the token id {highest} does not exist; ids are 0 to {facts.vocabulary - 1}",
                "tokens",
            )
        text = await decoded(server.llm.model.tokenizer, request.tokens)
        await exchange.respond_json(DetokenizeResponse(prompt=text))
