"""A server in a process of its own, over a tiny real model, for clients of other languages.

`python -m tests.clients.server DIRECTORY OPTIONS` serves until it is told to end; OPTIONS are
fields of ServerConfig, as JSON. The first line of the ready text says where.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from octavo.api.async_llm import AsyncLLM
from octavo.server.lifecycle import run
from octavo.server.settings import ServerConfig
from tests.api.tiny import make_model

ENGINE: dict[str, Any] = {"block_size": 4, "num_gpu_blocks_override": 400, "max_num_seqs": 8}


def main() -> int:
    """The process."""
    directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if "admin_socket" in options:
        options["admin_socket"] = Path(options["admin_socket"])
    config = ServerConfig(port=0, served_model_name="tiny", **options)
    llm = AsyncLLM(str(make_model(directory)), engine="process", **ENGINE)

    try:
        return run(config, llm)
    finally:
        llm.close()


if __name__ == "__main__":
    sys.exit(main())
