"""A worker that embeds texts in one library's own environment: JSON lines in, JSON lines out.

    python embeddings_worker.py octavo                DIRECTORY THREADS [OPTION=VALUE …]
    python embeddings_worker.py sentence-transformers DIRECTORY THREADS
    python embeddings_worker.py fastembed             DIRECTORY THREADS
    python embeddings_worker.py export                DIRECTORY FILE

The first line out is the library's version, when the model is loaded. Then each line in is
{"texts": […], "vectors": false} and each line out {"seconds": s}, with the vectors if asked for.
`export` writes the model as ONNX instead, for fastembed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Embed = Callable[[list[str]], Any]  # to rows of numbers
WIDTH = 384
BATCH = 32  # of the libraries that pad: faster here than larger and smaller ones


def octavo(model: str, threads: int, *options: str) -> Embed:
    """Load the model with `LLM`, which batches texts without padding."""
    from octavo import LLM

    more: Any = dict(option.split("=") for option in options)
    llm = LLM(model, num_threads=threads, **more)
    return lambda texts: [output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)]


def sentence_transformers(model: str, threads: int) -> Embed:
    """Load the library in fp32; it sorts texts by length and pads them."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    loaded: Any = SentenceTransformer(model, device="cpu")
    return lambda texts: loaded.encode(texts, batch_size=BATCH)


def fastembed(model: str, threads: int) -> Embed:
    """Load the model's ONNX file, model.onnx in its directory, in fp32."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="local",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="local"),
        dim=WIDTH,
        model_file="model.onnx",
    )
    loaded: Any = TextEmbedding("local", specific_model_path=model, threads=threads)
    return lambda texts: list(loaded.embed(texts, batch_size=BATCH))


def export(model: str, file: str) -> None:
    """Write the model as ONNX, with its attention in the form that ONNX Runtime fuses."""
    import torch
    from transformers import AutoModel

    encoder: Any = AutoModel.from_pretrained(
        model, attn_implementation="eager", dtype=torch.float32
    ).eval()

    class Hidden(torch.nn.Module):
        """The encoder with its last hidden states as the only output."""

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
            ).last_hidden_state

    ids = torch.ones((2, 8), dtype=torch.long)
    mask = ids.clone()
    mask[1, 5:] = 0
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "texts", 1: "tokens"} for name in (*names, "last_hidden_state")}
    torch.onnx.export(
        Hidden(),
        (ids, mask, ids * 0),
        file,
        dynamo=False,
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes=axes,
    )


def main() -> None:
    """Load the library that is named, and answer until the input ends."""
    kind, model, *more = sys.argv[1:]
    if kind == "export":
        export(model, more[0])
        return
    makers: dict[str, Callable[..., Embed]] = {
        "octavo": octavo,
        "sentence-transformers": sentence_transformers,
        "fastembed": fastembed,
    }
    embed = makers[kind](model, int(more[0]), *more[1:])
    print(json.dumps({"version": f"{kind} {version(kind)}"}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.perf_counter()
        vectors = embed(asked["texts"])
        answer: dict[str, Any] = {"seconds": time.perf_counter() - began}
        if asked["vectors"]:
            answer["vectors"] = [[float(value) for value in vector] for vector in vectors]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # this directory, whose modules have the names of others' packages
    Path(sys.argv[2]).resolve(strict=True)
    main()
