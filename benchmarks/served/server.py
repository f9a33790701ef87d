"""The server of the soak test: a real one over a real engine process, which reports what it holds.

    python benchmarks/served/server.py '{"model": null, "engine": "fake?step=0.01", ...}'

It prints a line of JSON when it is ready, for each SIGUSR1, and at its end. With `measures_holds`,
a line contains the longest holds of the event loop since the line before it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvloop

from benchmarks.served.loop_holds import LoopHolds
from octavo.adapter_copies.opening import open_copies
from octavo.api.async_llm import AsyncLLM
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
from octavo.client.restart_policy import Timing
from octavo.observe.collection import settle_memory
from octavo.options.engine import EngineArguments
from octavo.options.server import ServerSettings
from octavo.server.lifecycle import ServerLifecycle
from octavo.server.site import OneModel
from octavo.serving.server import Server
from tests.api.tiny import make_model


def start(settings: dict[str, Any], directory: Path) -> AsyncLLM:
    """Start the engine with a fake runner, or with a real model if one is named."""
    timing = Timing(**settings.get("timing", {}))
    if settings["model"]:
        return AsyncLLM(settings["model"], engine="process", timing=timing, **settings["options"])
    arguments, copies = open_copies(
        EngineArguments(
            model=settings["engine"],
            tokenizer=str(make_model(directory)),
            enable_lora=settings.get("has_adapters", False),
        )
    )
    client = make_client(arguments, [ProcessLauncher("tests.client.fake_engine:make")], timing)
    client.start()
    return AsyncLLM.over(client, arguments, copies=copies)


def held(server: Server, holds: LoopHolds | None) -> dict[str, Any]:
    """Count what would grow if anything were forgotten."""
    admission = server.admission
    longest = holds.take() if holds is not None else []  # before the collection holds the loop
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "active_requests": len(server.active),
        "tickets": admission.num_open,
        "admitted": admission.num_admitted,
        "waiting_bytes": admission.waiting_bytes,
        "objects": len(gc.get_objects()),
        "longest_holds_ms": longest,
    }


async def serve(settings: dict[str, Any], llm: AsyncLLM) -> None:
    """Serve until a signal ends the process."""
    server = Server(llm, ServerSettings(port=0, **settings["server"]))

    loop = asyncio.get_running_loop()
    holds = LoopHolds(loop) if settings.get("measures_holds") else None

    def report(**more: Any) -> None:
        print(json.dumps({**held(server, holds), **more}), flush=True)

    loop.add_signal_handler(signal.SIGUSR1, report)
    facts = server.llm.facts
    settle_memory()
    await ServerLifecycle(OneModel(server)).run(
        lambda life: report(
            port=life.port,
            grpc_port=None if life.grpc is None else life.grpc.port,
            vocabulary=facts.vocabulary,
        )
    )
    report(over=1)


def main() -> None:
    settings = json.loads(sys.argv[1])
    server = settings["server"]
    if "max_files" in settings:  # that this process may have open
        resource.setrlimit(resource.RLIMIT_NOFILE, (settings["max_files"],) * 2)
    for name in ("admin_socket", "batch_dir", "journal"):
        if name in server:
            server[name] = Path(server[name])
    server["api_keys"] = tuple(server.get("api_keys", ()))
    logging.basicConfig(level="ERROR", format="server: %(message)s")
    with tempfile.TemporaryDirectory() as name:
        llm = start(settings, Path(name))
        try:
            uvloop.run(serve(settings, llm))
        finally:
            llm.close()


if __name__ == "__main__":
    main()
