"""The routes about the server's state under llama.cpp's names: /props and /slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.dialects.llama.settings import default_settings
from octavo.serving.exchange import Exchange
from octavo.serving.server import VERSION


async def props(exchange: Exchange) -> None:
    """Respond with the facts about the model and the parameters of requests that set none."""
    server = exchange.server
    facts, model = server.llm.facts, server.llm.model
    tokenizer = model.tokenizer
    templates, named = tokenizer.chat_templates, tokenizer.special_tokens
    found: dict[str, Any] = {
        "default_generation_settings": {
            "params": default_settings(model),
            "n_ctx": facts.longest_tokens,
        },
        "total_slots": facts.max_num_seqs,
        "model_alias": server.model_name,
        "model_ftype": facts.weight_type,
        "model_path": _path(facts.directory, facts.weights),
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": server.config.chat_template or templates.get("default", ""),
        "bos_token": named.get("bos_token", ""),
        "eos_token": named.get("eos_token", ""),
        "build_info": f"octavo-{VERSION}",
        "is_sleeping": server.llm.is_sleeping,
    }
    if "tool_use" in templates and not server.config.chat_template:
        found["chat_template_tool_use"] = templates["tool_use"]
    await exchange.respond_json(found)


async def slots(exchange: Exchange) -> None:
    """Respond with one object for each sequence that can run at once.

    Sequences have no fixed slots here: the first of the list are those in use. Texts and parameters
    of requests are not listed.
    """
    server = exchange.server
    facts = server.llm.facts
    in_use = min(server.admission.num_open, facts.max_num_seqs)
    await exchange.respond_json(
        [
            {
                "id": index,
                "n_ctx": facts.longest_tokens,
                "speculative": False,
                "is_processing": index < in_use,
            }
            for index in range(facts.max_num_seqs)
        ]
    )


def _path(directory: str, weights: tuple[str, ...]) -> str:
    """Return the name of the model's file, or of its directory; not where it is."""
    if len(weights) == 1 and weights[0].endswith(".gguf"):
        return Path(weights[0]).name
    return Path(directory).name
