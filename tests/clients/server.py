"""A server process over a tiny real model, for clients in other languages.

`python -m tests.clients.server DIRECTORY OPTIONS` serves until it gets a signal; OPTIONS are the
fields of the server's settings, as JSON. The first line of the ready text has the address.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from octavo.api.async_llm import AsyncLLM
from octavo.server.lifecycle import run
from octavo.server.settings import ServerSettings
from tests.api.tiny import make_model

ENGINE: dict[str, Any] = {"block_size": 4, "num_gpu_blocks_override": 400, "max_num_seqs": 8}


def main() -> int:
    """Run the server until it ends."""
    directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    if "admin_socket" in options:
        options["admin_socket"] = Path(options["admin_socket"])
    config = ServerSettings(port=0, served_model_name="tiny", **options)
    llm = AsyncLLM(str(make_model(directory)), engine="process", **ENGINE)

    try:
        return run(config, llm)
    finally:
        llm.close()


if __name__ == "__main__":
    sys.exit(main())
