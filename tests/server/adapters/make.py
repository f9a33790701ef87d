"""Adapters on disk, and a server over a stand-in engine that can have them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from octavo.adapter_copies.files import SETTINGS, TENSORS
from octavo.options.named_adapters import NamedAdapter
from tests.loader.make_files import write_safetensors
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving

NAME = "base_model.model.model.layers.0.self_attn.q_proj"


def write_adapter(place: Path, seed: int, **settings: Any) -> Path:
    """Write the files of an adapter, whose numbers depend on the seed; return its directory."""
    place.mkdir(parents=True, exist_ok=True)
    (place / SETTINGS).write_text(json.dumps({"r": 2, "lora_alpha": 4, **settings}))
    drawn = np.random.default_rng(seed)
    pair = {
        f"{NAME}.lora_A.weight": drawn.standard_normal((2, 32), np.float32),
        f"{NAME}.lora_B.weight": drawn.standard_normal((32, 2), np.float32),
    }
    write_safetensors(place / TENSORS, pair)
    return place


@asynccontextmanager
async def with_adapters(
    directory: Path, place: Path, engine: FakeEngine | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Serve with the adapters `sql` and `law`, whose files are below a place."""
    named = tuple(
        NamedAdapter(name, str(write_adapter(place / name, seed)))
        for seed, name in enumerate(("sql", "law"))
    )
    engine = engine or FakeEngine(directory, max_loras=2)
    async with serving(directory, engine, **{"lora_modules": named, **options}) as client:
        yield client


async def text_of(client: Client, model: str | None = None, **fields: Any) -> str:
    """Return what a completion says under a model's name."""
    if model is not None:
        fields["model"] = model
    answer = await client.complete(max_tokens=8, temperature=0, **fields)
    text: str = answer["choices"][0]["text"]
    return text
