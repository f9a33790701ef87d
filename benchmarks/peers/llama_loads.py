"""Loads in llama.cpp what `octavo quantize` makes of GGUF files: every type, of two models.

    python -m benchmarks.peers.llama_loads build/peers/llama.cpp
    python -m benchmarks.peers.llama_loads build/peers/llama.cpp --types q4_k_m,q8_0

The first model is SmolLM2 in F16, the other one has experts, random weights and the words of
SmolLM2. Each is quantised by the command; llama-server generates some tokens, and finds the
likeliest token behind each beginning of a text. Of SmolLM2 most must be those that this engine
finds: both read the same numbers, and round activations in ways of their own. Of random weights any
tokens will do.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.models import smollm2
from octavo import LLM, SamplingParams
from octavo.quantize.gguf.plan import RECIPES

TEXT = Path(__file__).parents[1] / "prose.txt"
TOKENS = 24
FEWEST_READ, MOST_READ = 8, 56  # tokens of the text's beginnings
LEAST_EQUAL = 0.8
SECONDS = 120
# The model with experts: as many layers as mixtures need to differ, and rows of 256.
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, EXPERTS, USED = 8, 256, 512, 4, 2, 4, 2
NUMBERS: dict[str, int | float] = {
    "block_count": LAYERS,
    "embedding_length": HIDDEN,
    "feed_forward_length": INNER,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "rope.dimension_count": HIDDEN // HEADS,
    "expert_count": EXPERTS,
    "expert_used_count": USED,
}
Floats = NDArray[np.float32]


def write_floats(source: Path, to: Path, *, has_experts: bool) -> None:
    """Write SmolLM2 in F16, or random experts with its words."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(to, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = field.contents()
        if has_experts and name.startswith("llama."):
            value = NUMBERS.get(name.removeprefix("llama."), value)
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], inner)
    if has_experts:
        for name in ("expert_count", "expert_used_count"):
            writer.add_uint32(f"llama.{name}", int(NUMBERS[name]))
    tensors = experts(reader) if has_experts else stored(reader)
    for name, values in tensors:
        is_small = values.ndim == 1 or "ffn_gate_inp" in name
        writer.add_tensor(name, values if is_small else values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored(reader: gguf.GGUFReader) -> Iterator[tuple[str, Floats]]:
    for tensor in reader.tensors:
        yield tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)


def experts(reader: gguf.GGUFReader) -> Iterator[tuple[str, Floats]]:
    words = next(int(t.shape[1]) for t in reader.tensors if t.name == "token_embd.weight")
    generator = np.random.default_rng(0)
    kv = HIDDEN // HEADS * KV_HEADS
    matrices = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate_inp": (EXPERTS, HIDDEN),
        "ffn_gate_exps": (EXPERTS, INNER, HIDDEN),
        "ffn_up_exps": (EXPERTS, INNER, HIDDEN),
        "ffn_down_exps": (EXPERTS, HIDDEN, INNER),
    }

    def made(*shape: int) -> Floats:
        return generator.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)

    yield "token_embd.weight", made(words, HIDDEN)
    yield "output_norm.weight", np.ones(HIDDEN, np.float32)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, np.float32)
        for name, shape in matrices.items():
            yield f"blk.{layer}.{name}.weight", made(*shape)


@contextmanager
def served(programs: Path, model: Path) -> Iterator[str]:
    """Start llama-server, and end it."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(programs / "llama-server"), "-m", str(model), "-t", "2", "-c", "512"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", port, "--no-warmup"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            until = time.monotonic() + SECONDS
            while not is_ready(f"http://127.0.0.1:{port}/health"):
                if server.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    raise OSError(f"llama-server does not load it: {log.read()[-800:]!r}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def continued(address: str, prompt: list[int], count: int) -> list[int]:
    """Return so many tokens with which llama.cpp continues a prompt."""
    body: dict[str, Any] = {
        "prompt": prompt,
        "n_predict": count,
        "temperature": 0,
        "ignore_eos": True,
        "return_tokens": True,
    }
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return list(json.load(answer)["tokens"])


def beginnings(model: Path) -> tuple[list[list[int]], list[int]]:
    """Return beginnings of the text, and the token that this engine finds behind each."""
    with LLM(str(model), max_model_len=512) as llm:
        tokens = llm.get_tokenizer().encode(TEXT.read_text("utf-8")[:1000])[:MOST_READ]
        prompts = [tokens[:end] for end in range(FEWEST_READ, len(tokens) + 1)]
        asked = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        answers = llm.generate([{"prompt_token_ids": each} for each in prompts], asked)
    return prompts, [answer.outputs[0].token_ids[0] for answer in answers]


def check(programs: Path, model: Path, *, is_trained: bool) -> str:
    """Return what llama.cpp makes of a file; refuse one of which it makes something else."""
    prompts, here = beginnings(model)
    with served(programs, model) as address:
        made = len(continued(address, prompts[-1], TOKENS))
        there = [continued(address, each, 1)[0] for each in prompts]
    same = sum(map(int.__eq__, here, there))
    if made != TOKENS or (is_trained and same < LEAST_EQUAL * len(prompts)):
        raise SystemExit(
            f"{model.name}: {made} of {TOKENS} tokens, and {same} of {len(prompts)} as ours"
        )
    return f"{made} tokens; behind {len(prompts)} texts {same} tokens as ours"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", type=Path, help="the directory that has llama-server")
    parser.add_argument("--types", default=",".join(RECIPES), help="types of --to")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for kind in ("dense", "experts"):
            floats = Path(directory) / f"{kind}.gguf"
            write_floats(smollm2().gguf, floats, has_experts=kind == "experts")
            for name in chosen.types.split(","):
                made = Path(directory) / f"{kind}-{name}.gguf"
                command = [sys.executable, "-m", "octavo", "quantize", str(floats)]
                subprocess.run(
                    [*command, "--to", name, "-o", str(made)], check=True, capture_output=True
                )
                found = check(chosen.programs, made, is_trained=kind == "dense")
                size = made.stat().st_size / 2**20
                print(f"{kind:8}{name:8}{size:6.0f} MiB  {found}", flush=True)
                made.unlink()


if __name__ == "__main__":
    main()
