"""Adapters from their files to the answers, over real engines of a tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest
from safetensors.numpy import load_file

from octavo import LLM, AsyncLLM, LoRARequest, SamplingParams
from octavo.options.named_adapters import NamedAdapter
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.serving.adapters.service import AdapterService
from octavo.serving.server import Server
from tests.adapters.made import Projection, make_arrays, write_adapter
from tests.api.tiny import make_model
from tests.client import clients
from tests.server.make import Client, patient, until

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "backend": "torch",
    "dtype": "float32",
    "num_gpu_blocks_override": 60,
    "max_num_seqs": 8,
    "enable_lora": True,
    "max_loras": 2,
    "max_lora_rank": 8,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def write(model: Path, place: Path, seed: int, **settings: Any) -> Path:
    """Write an adapter of all projections of a model; return its directory."""
    modules = [
        Projection(name.removesuffix(".weight"), len(array), array.shape[1], False)
        for name, array in load_file(model / "model.safetensors").items()
        if "_proj" in name
    ]
    write_adapter(place, make_arrays(modules, seed=seed), **{"lora_alpha": 8.0, **settings})
    return place


async def say(client: Client, model: str, **fields: Any) -> str:
    """Return the text of an answer under a name."""
    body = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, **fields}
    answer = await client.complete(model=model, **body)
    text: str = answer["choices"][0]["text"]
    return text


def test_adapters_answer_change_and_outlive_their_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    model = make_model(tmp_path)
    places = {name: write(model, tmp_path / name, seed) for seed, name in enumerate("abc", 1)}
    with LLM(str(model), **SETTINGS) as llm:
        asked: list[LoRARequest | None] = [None]
        asked += [LoRARequest(name, 1, str(place)) for name, place in places.items()]
        outputs = llm.generate(["The quick"] * 4, GREEDY, lora_request=asked, use_tqdm=False)
        base, *texts = [each.outputs[0].text for each in outputs]
        alone = llm.generate("The quick", GREEDY, lora_request=asked[1], use_tqdm=False)
        assert alone[0].outputs[0].text == texts[0]
    assert len({base, *texts}) == 4

    async def main(llm: AsyncLLM) -> None:
        named = tuple(NamedAdapter(name, str(places[name])) for name in "ab")
        server = Server(llm, patient(lora_modules=named))
        llm.attach()
        service = AdapterService(server)
        await service.start()
        async with Client(server) as client:
            admin = Client(server, ADMIN_ROUTES, checks_access=False)
            names = (llm.facts.name, "a", "b")
            found = await asyncio.gather(*(say(client, name) for name in names))
            assert found == [base, *texts[:2]]
            running = asyncio.create_task(say(client, "a"))
            await until(lambda: bool(server.active))
            os.kill(clients.process_of(cast(Any, llm._client)).pid, signal.SIGKILL)
            assert await running == texts[0]
            await until(lambda: llm.engines[0].vitals.num_deaths == 1 and llm.is_well())
            for file in places["c"].iterdir():
                (places["a"] / file.name).write_bytes(file.read_bytes())
            assert await say(client, "a") == texts[0]
            body = {"lora_name": "a", "lora_path": str(places["a"]), "load_inplace": True}
            answer = await admin.post("/v1/load_lora_adapter", json=body)
            assert answer.status_code == 200, answer.text
            assert await say(client, "a") == texts[2]
            write(model, tmp_path / "wrong", 4, r=64)
            body = {"lora_name": "wrong", "lora_path": str(tmp_path / "wrong")}
            answer = await admin.post("/v1/load_lora_adapter", json=body)
            assert answer.status_code == 400, answer.text
            assert str(tmp_path / "wrong" / "adapter_model.safetensors") in answer.text
            assert str(tmp_path / "cache") not in answer.text
            assert (await admin.post("/v1/unload_lora_adapter", json={"lora_name": "b"})).is_success
            assert await say(client, llm.facts.name) == base
        service.close()
        await server.prompt_pool.close()

    server = AsyncLLM(str(model), engine="process", timing=clients.patient(), **SETTINGS)
    try:
        asyncio.run(main(server))
    finally:
        server.close()
    assert not [*(tmp_path / "cache" / "adapters").iterdir()]
