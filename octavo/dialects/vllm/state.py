"""The routes of vLLM that ask for no answer: /load, /tokenizer_info, the end of requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from octavo.serving.ending import AbortRequests, end
from octavo.serving.exchange import Exchange
from octavo.text.token_table import TokenTable

CONFIG = "tokenizer_config.json"
MAX_CONFIG_BYTES = 4 << 20


async def load(exchange: Exchange) -> None:
    """Respond with the number of requests that wait or run."""
    await exchange.respond_json({"server_load": exchange.server.admission.num_open})


async def tokenizer_info(exchange: Exchange) -> None:
    """Respond with the tokenizer's configuration, or what is known of one that has no file."""
    model = exchange.server.llm.model
    path = Path(str(model.source.tokenizer_path))
    found = await asyncio.to_thread(_configuration, path)
    await exchange.respond_json({**_known(model.tokenizer), **found})


async def abort(exchange: Exchange) -> None:
    """End requests of the same key; their clients get the tokens so far.

    A name that no request has, or has any more, is no error: it may have ended meanwhile.
    """
    asked = await exchange.read(AbortRequests)
    names, server = set(asked.request_ids), exchange.server
    for active in list(server.active.values()):
        record = active.record
        if record.request_id in names and record.owner == exchange.owner:
            await end(server, active)
    await exchange.respond(b"{}")


def _known(tokenizer: TokenTable) -> dict[str, Any]:
    """Return what the table of tokens says, in the form of a configuration."""
    templates = tokenizer.chat_templates
    special = tokenizer.special_ids
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokenizer.special_tokens,
        "added_tokens_decoder": {
            str(token): {"content": text, "special": token in special}
            for token, text in tokenizer.added_tokens.items()
        },
        "chat_template": templates.get("default"),
    }


def _configuration(path: Path) -> dict[str, Any]:
    """Return the configuration beside a tokenizer; nothing if it is missing or no object."""
    file = (path if path.is_dir() else path.parent) / CONFIG
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            return {}
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
