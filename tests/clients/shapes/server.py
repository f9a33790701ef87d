"""A server process over a tiny random model with tools: only grammars give its answers a shape.

`python -m tests.clients.shapes.server DIRECTORY OPTIONS` serves until it gets a signal; OPTIONS are
the fields of the server's settings, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from octavo.api.async_llm import AsyncLLM
from octavo.options.server import ServerSettings
from octavo.server.lifecycle import run
from tests.api.tiny import make_model
from tests.server.openai.scripted import make_files

ENGINE: dict[str, Any] = {"block_size": 16, "num_gpu_blocks_override": 1000, "max_num_seqs": 8}


def main() -> int:
    """Run the server until it ends."""
    directory = make_files(make_model(Path(sys.argv[1])))  # the tokenizer of bytes and marks
    file = directory / "config.json"
    room = {"max_position_embeddings": 8192}
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **room}), "utf-8")
    config = ServerSettings(port=0, served_model_name="tiny", **json.loads(sys.argv[2]))
    llm = AsyncLLM(str(directory), engine="process", **ENGINE)
    try:
        return run(config, llm)
    finally:
        llm.close()


if __name__ == "__main__":
    sys.exit(main())
