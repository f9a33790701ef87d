"""A server process whose model is an agent: it thinks, calls two tools, and answers.

`python -m tests.clients.agent_server DIRECTORY OPTIONS` serves until it gets a signal; OPTIONS are
the fields of the server's settings, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from octavo.options.server import ServerSettings
from octavo.server.lifecycle import run
from tests.server.openai.scripted import AGENT, make_files, scripted_engine


def main() -> int:
    """Run the server until it ends."""
    directory = make_files(Path(sys.argv[1]))
    engine = scripted_engine(directory, AGENT)
    config = ServerSettings(port=0, served_model_name="tiny", **json.loads(sys.argv[2]))
    try:
        return run(config, engine)
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main())
