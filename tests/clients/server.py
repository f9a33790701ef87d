"""A server process over a tiny real model, for clients in other languages.

`python -m tests.clients.server DIRECTORY OPTIONS` serves until it gets a signal; OPTIONS are the
fields of the server's settings, as JSON. With `num_classes` the model is a classifier. The line of
output is the address; the port of gRPC is written to `grpc-port`, beside the model's directory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from octavo.api.async_llm import AsyncLLM
from octavo.options.server import ServerSettings
from octavo.server.lifecycle import ServerLifecycle, run
from tests.api.tiny import make_model

ENGINE: dict[str, Any] = {"block_size": 4, "num_gpu_blocks_override": 400, "max_num_seqs": 8}


def make_classifier(directory: Path, num_classes: int) -> Path:
    """Write a model with so many classes."""
    make_model(directory)
    file = directory / "config.json"
    config = json.loads(file.read_text("utf-8"))
    config["architectures"] = ["LlamaForSequenceClassification"]
    config["num_labels"] = num_classes
    file.write_text(json.dumps(config), "utf-8")
    tensors = load_file(directory / "model.safetensors")
    tensors["score.weight"] = tensors["model.embed_tokens.weight"][5 : 5 + num_classes].copy()
    save_file(tensors, directory / "model.safetensors")
    return directory


def main() -> int:
    """Run the server until it ends."""
    directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    for name in ("admin_socket", "batch_dir", "journal"):
        if name in options:
            options[name] = Path(options[name])
    num_classes = options.pop("num_classes", 0)
    model = make_classifier(directory, num_classes) if num_classes else make_model(directory)
    config = ServerSettings(port=0, served_model_name="tiny", **options)
    llm = AsyncLLM(str(model), engine="process", **ENGINE)

    def say(life: ServerLifecycle) -> None:
        if life.grpc is not None:
            (directory.parent / "grpc-port").write_text(str(life.grpc.port), "utf-8")
        print(f"http://127.0.0.1:{life.port}", flush=True)

    try:
        return run(config, llm, say)
    finally:
        llm.close()


if __name__ == "__main__":
    sys.exit(main())
