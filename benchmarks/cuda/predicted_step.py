"""Predicts a decode step of Llama-3.1-8B from compiled kernels and data sheets: no measurement.

    make test-gpu-blind     # once: it installs Triton
    PYTHONPATH=build/gpu-blind python -m benchmarks.cuda.predicted_step

The kernels are compiled for Hopper, and their registers and shared memory say how many blocks a
card runs at once, and so how many bytes are on their way. All else is arithmetic over assumptions,
each named below. The result is printed as the table of docs/gpu.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from octavo.backends.cuda.kernels.attention import CHUNK, KEYS
from octavo.backends.torch.ops import CUDA_TILE_ROWS
from octavo.layers import Linear, Model
from octavo.models.config_reader import Config
from octavo.models.registry import family_of
from tests.gpu_blind.cases import BF16, Attention, attention_case
from tests.gpu_blind.compiled.compile import Code, facts_of
from tests.gpu_blind.compiled.executed import collecting

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
}
CONTEXT = 1024
SEQUENCES = (1, 32, 128, 256)
HOPPER = 90

# Assumptions, none of which was measured by this project.
ACHIEVED = 0.85  # of the bandwidth, or of the products, that a card has
BOUNDARY = 2e-6  # seconds from one kernel of a graph to the next
LATENCY = 700e-9  # seconds of a load from the card's memory
LAYER_LAUNCHES = 6  # beside products; tests/gpu_blind holds that number, up to 8,192 positions
OTHER_LAUNCHES = 40  # of torch's operations around the layers: the batch, draws


class Card(NamedTuple):
    """A card: rates of copies and of products, and what one of its processors holds."""

    name: str
    bandwidth: float  # bytes a second: a reading of 4.3 on an H200, and its share of the data sheet
    products: float  # of bf16, operations a second
    short_products: float  # of FP8
    processors: int = 132
    registers: int = 65536
    shared_bytes: int = 233472
    threads: int = 2048
    blocks: int = 32


H100 = Card("H100", 3.35e12 * 4.3 / 4.8, 780e12, 1400e12)
H200 = Card("H200", 4.3e12, 780e12, 1400e12)


class Form(NamedTuple):
    """The bytes of a weight in products, and the launches that each product needs."""

    name: str
    weight_bytes: int
    launches: int  # of one product's tile


FORMS = (Form("bf16", 2, 1), Form("FP8", 1, 1))


class Step(NamedTuple):
    """A step's time in seconds: the least that bandwidth and products allow, and the prediction."""

    limit: float
    predicted: float


def declared() -> Model:
    """Declare the model, without weights."""
    family = family_of("LlamaForCausalLM")
    return family(family.read(Config(dict(MODEL))))


def attention_code() -> Code:
    """Compile the attention of a single row, in the shapes of the model."""
    found: dict[str, Code] = {}
    shape = Attention(heads=32, kv_heads=8, dim=128, sequences=((600, 1),))
    attention_case(BF16, "decode", shape).compute(collecting(HOPPER, found))
    return found["attend_chunks"]


def blocks_at_once(registers: int, shared_bytes: int, warps: int, card: Card) -> int:
    """Return how many blocks of a kernel a processor runs at once."""
    of_block = math.ceil(registers * 32 / 256) * 256 * warps
    return min(
        card.registers // of_block,
        card.shared_bytes // (shared_bytes + 1024),
        card.threads // (32 * warps),
        card.blocks,
    )


def attention_seconds(code: Code, sequences: int, card: Card, heads: int, dim: int) -> float:
    """Return the time of one layer's reads of keys and values."""
    tile = 2 * KEYS * dim * 2  # of keys and values, in bf16
    early = max(1, code.shared_bytes // tile) * tile  # on their way to one block
    at_once = blocks_at_once(
        facts_of(code.cubin).registers, code.shared_bytes, code.num_warps, card
    )
    programs = sequences * math.ceil(CONTEXT / CHUNK) * heads
    in_flight = min(programs, at_once * card.processors) * early
    num_bytes = sequences * CONTEXT * heads * dim * 2 * 2
    return num_bytes / min(card.bandwidth * ACHIEVED, in_flight / LATENCY)


def step(code: Code, form: Form, sequences: int, card: Card) -> Step:
    """Predict a step of so many sequences."""
    model = declared()
    matrices = [each for _, each in model.walk() if isinstance(each, Linear)]
    layers = model.spec.layers
    rate = card.products if form.weight_bytes == 2 else card.short_products
    tiles = math.ceil(sequences / CUDA_TILE_ROWS)
    least = products = 0.0
    launches = OTHER_LAUNCHES + layers * LAYER_LAUNCHES
    for matrix in matrices:
        is_head = matrix is model.head
        size = 2 if is_head else form.weight_bytes  # heads stay in bf16
        count, peak = matrix.outputs * matrix.inputs, card.products if is_head else rate
        least += max(count * size / card.bandwidth, 2 * sequences * count / peak)
        one_tile = max(count * size / card.bandwidth, 2 * CUDA_TILE_ROWS * count / peak)
        products += tiles * one_tile / ACHIEVED
        launches += tiles * form.launches
    heads, dim = model.spec.kv_heads, model.spec.head_dim
    kv_bytes = layers * sequences * CONTEXT * heads * dim * 2 * 2
    attention = layers * attention_seconds(code, sequences, card, heads, dim)
    return Step(least + kv_bytes / card.bandwidth, products + attention + launches * BOUNDARY)


def table(code: Code) -> str:
    """Return the predictions as a table."""
    rows = [
        "| card, weights | sequences | limit, ms | prediction, ms | limit / prediction |",
        "| --- | --- | --- | --- | --- |",
    ]
    for card in (H100, H200):
        for form in FORMS:
            for sequences in SEQUENCES:
                found = step(code, form, sequences, card)
                share = f"{100 * found.limit / found.predicted:.0f} %"
                times = f"{found.limit * 1e3:.2f} | {found.predicted * 1e3:.2f}"
                rows.append(f"| {card.name}, {form.name} | {sequences} | {times} | {share} |")
    return "\n".join(rows)


def main() -> None:
    code = attention_code()
    facts = facts_of(code.cubin)
    at_once = blocks_at_once(facts.registers, code.shared_bytes, code.num_warps, H200)
    print(
        f"attend_chunks for sm_{HOPPER}: {facts.registers} registers, {code.shared_bytes} bytes "
        f"of shared memory: {at_once} blocks at once on a processor\n"
    )
    print(table(code))


if __name__ == "__main__":
    main()
