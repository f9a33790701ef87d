"""The format of every matrix and the instructions of every family, pinned.

A type that is suddenly kept larger, a matrix that falls apart, an addition that is no longer a part
of a product: nothing would be wrong, only slow. Here it fails.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.tiers import choose_tier
from octavo.loader import resolve
from octavo.loader.gguf.types import TENSOR_TYPES
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from tests.backends.native.kernels.test_gemm_quantized import CODES, random_blocks
from tests.loader.make_files import F32, STRING, U32, GGUFTensor, f32_tensor, write_gguf
from tests.models.made_up import CONFIGS, DECODERS, EXPERTS, SIZES, MadeUpWeights, make_model

# A Llama such as SmolLM2, tied, of whole blocks of 256 and whole panels of 32.
LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 2, 256, 512, 4, 2, 64, 320
KV = KV_HEADS * HEAD_DIM
MATRICES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV, HIDDEN),
    "attn_v": (KV, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}
METADATA: list[tuple[str, int, Any]] = [
    ("general.architecture", STRING, "llama"),
    ("llama.context_length", U32, 64),
    ("llama.embedding_length", U32, HIDDEN),
    ("llama.block_count", U32, LAYERS),
    ("llama.feed_forward_length", U32, FFN),
    ("llama.attention.head_count", U32, HEADS),
    ("llama.attention.head_count_kv", U32, KV_HEADS),
    ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
    ("llama.rope.freq_base", F32, 10_000.0),
    ("llama.rope.dimension_count", U32, HEAD_DIM),
]
# The format for each type that a file may hold, of the same size; for the others the nearest.
KEPT = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    "Q4_0": "U4",
    "Q4_1": "U4Min",
    "Q5_0": "U5",
    "Q5_1": "U5Min",
    "Q8_0": "U8",
    "Q4_K": "U4K",
    "Q5_K": "U5K",
    "Q6_K": "U6",
    "IQ4_NL": "Table4",
    "MXFP4": "Mx4",
}
BLOCKS = [kind.name for kind in TENSOR_TYPES.values() if kind.is_quantized]
CONVERTED = {
    "IQ4_XS": "Table4K",
    "Q3_K": "U3K",
    "Q2_K": "U2K",
    "Q1_0": "U2By128",
    "Q2_0": "U2By64",
    "NVFP4": "NVFP4By16",
    **dict.fromkeys(("Q8_1", "Q8_K"), "U8"),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), "U2By256"),
    **dict.fromkeys(("IQ1_S", "IQ1_M"), "Table3Iq1"),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S"), "Table3Iq2"),
    "IQ3_XXS": "Table4Xxs",
    "IQ3_S": "Table4S",
}

LAYER = """\
│
prepare norm+ [512×256 {0}]
gemm [512×256 {0}]
│
attention 4/2×64 +rope
│
prepare [256×256 {0}]
gemm [256×256 {0}] +residual
│
prepare norm+ [1024×256 {0}]
gemm [1024×256 {0}] +Silu +gate
│
prepare [256×512 {0}]
gemm [256×512 {0}] +residual
"""


def in_form(kind: str) -> str:
    """Return a layer whose weights have this format; floats read rows where they are."""
    lines = LAYER.format(kind).splitlines(keepends=True)
    is_float = kind in ("F32", "F16")
    return "".join(each for each in lines if not (is_float and each.startswith("prepare [")))


def program(layer: str, table: str) -> str:
    """Return the whole program: embedding, layers, and a head whose input is normalised first.

    The last layer selects the wanted rows of its residual, and makes the keys of all rows.
    """
    head = "│\nselect\n│\nprepare norm+ [320×256 {0}]\ngemm [320×256 {0}]\nselect\nnorm"
    before, attention = layer.split("│\nattention")
    last = f"{before}select\n│\nattention{attention}"
    layers = (LAYERS - 1) * layer + last
    return f"ropetables\nembed [320×256 {table}]\n" + layers + head.format(table)


def matrix(name: str, kind: str, shape: tuple[int, int]) -> GGUFTensor:
    """Return random weights of this type."""
    outputs, inputs = shape
    if kind in ("F32", "F16", "BF16"):
        values = np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(0.05)
        data = values.astype(np.float16 if kind == "F16" else np.float32)
        stored = (data.view(np.uint32) >> 16).astype(np.uint16) if kind == "BF16" else data
    else:
        stored = random_blocks(kind, outputs, inputs, 1e-3)
    return GGUFTensor(name, (inputs, outputs), CODES[kind], stored.tobytes())


def write_model(path: Path, kind: str, **others: str) -> Path:
    """Write a file whose matrices have one type, except those that are named."""
    table = others.pop("token_embd", kind)
    tensors = [matrix("token_embd.weight", table, (VOCABULARY, HIDDEN))]
    for layer in range(LAYERS):
        of = f"blk.{layer}."
        tensors += [
            matrix(f"{of}{name}.weight", others.get(name, kind), shape)
            for name, shape in MATRICES.items()
        ]
        for name in ("attn_norm", "ffn_norm"):
            tensors += [f32_tensor(f"{of}{name}.weight", np.ones(HIDDEN, np.float32))]
    tensors.append(f32_tensor("output_norm.weight", np.ones(HIDDEN, np.float32)))
    return write_gguf(path / f"{kind}.gguf", METADATA, tensors)


def recorded(path: Path, **options: Any) -> NativeBackend:
    opened = open_model(resolve(str(path)))
    layout = place_layers(opened.model)
    backend = NativeBackend(NativeOptions(num_threads=1, **options))
    bind(opened.model, backend, opened.weights)
    backend.prepare(opened.model, layout, 16)
    backend.make_cache(4)
    return backend


# ---- formats ----


@pytest.mark.parametrize("kind", KEPT)
def test_every_type_runs_as_it_is_stored(kind: str, tmp_path: Path) -> None:
    """The whole program has five phases a layer, and QKV is one matrix."""
    path = write_model(tmp_path, kind)
    backend = recorded(path)
    assert backend.describe() == program(in_form(KEPT[kind]), KEPT[kind])
    tensors = resolve(str(path)).open().tensors.values()
    # Norms are fp32 in both.
    assert backend.weight_bytes == sum(tensor.num_bytes for tensor in tensors)


def test_what_is_converted_is_known() -> None:
    assert set(BLOCKS) == (KEPT.keys() | CONVERTED.keys()) - {"F32", "F16", "BF16"}


@pytest.mark.parametrize("kind", CONVERTED)
def test_other_types_become_the_nearest_and_the_log_says_so(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.backends.native")
    backend = recorded(write_model(tmp_path, kind))
    kept = CONVERTED[kind]
    assert backend.describe() == program(in_form(kept), kept)
    assert caplog.messages == [f"weights stored as {kind} are kept as {kept}"]


@pytest.mark.parametrize(
    ("wish", "kept", "table"),
    [
        ("auto", "BF16", "BF16"),
        ("bf16", "BF16", "BF16"),
        ("int8", "U8", "U8"),
        ("int8-64", "U8By64", "U8By64"),
        ("int8-128", "U8By128", "U8By128"),
        ("int8-wide", "U8Wide", "U8Wide"),
        ("int4", "U4", "U8"),
        ("int4-64", "U4By64", "U8By64"),
        ("int4-128", "U4By128", "U8By128"),
        ("float32", "F32", "F32"),
    ],
)
def test_a_wish_is_fulfilled_everywhere(wish: str, kept: str, table: str, tmp_path: Path) -> None:
    backend = recorded(write_model(tmp_path, "BF16"), weights=wish)
    assert backend.describe() == program(in_form(kept), table)


def test_a_files_mixture_stays_one_product(tmp_path: Path) -> None:
    """The types are those of llama.cpp's Q4_K_M: values and the layer's output in six bits."""
    path = write_model(tmp_path, "Q4_K", attn_v="Q6_K", ffn_down="Q6_K", token_embd="Q8_0")
    layer = LAYER.format("U4K").replace("[512×256 U4K]", "[512×256 U4K+U6]")
    layer = layer.replace("[256×512 U4K]", "[256×512 U6]")
    assert recorded(path).describe() == program(layer, "U8")


def test_pieces_that_read_different_rows_are_two_products(tmp_path: Path) -> None:
    """The norm is then an instruction of its own."""
    text = recorded(write_model(tmp_path, "Q8_0", attn_v="BF16")).describe()
    assert text.count("gemm [512×256 U8]") == LAYERS
    assert text.count("gemm [512×256 BF16]") == LAYERS
    assert text.count("\nnorm\n") == LAYERS


@pytest.mark.parametrize("tier", _native.tiers())
def test_the_kernels_are_those_that_were_asked_for(tier: str) -> None:
    assert NativeBackend(NativeOptions(instruction_set=tier, num_threads=1)).tier == tier


def test_a_tier_that_failed_its_self_test_is_named_once_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_native, "dropped_tiers", dict)
    best = choose_tier("")
    assert caplog.records == []
    monkeypatch.setattr(_native, "dropped_tiers", lambda: {"amx": "a reason of this test alone"})
    assert choose_tier("") == choose_tier("") == best
    [record] = caplog.records
    assert "amx" in record.getMessage()
    assert "a reason of this test alone" in record.getMessage()


def test_by_default_they_are_the_best() -> None:
    x86 = ("scalar", "avx2", "avx512vnni", "avx512bf16", "amx")
    emulated = (*x86[:-1], "amx_emulated")  # of builds for tests, whatever the processor has
    tiers = tuple(_native.tiers())
    orders = (x86, emulated, ("scalar", "neon", "neonbf16"))
    assert tiers in {order[: len(tiers)] for order in orders}
    assert NativeBackend().tier == _native.tiers()[-1]


# ---- families ----

FUSED = {"RopeTables", "Embed", "Prepare", "Gemm", "Attention", "Select", "Norm"}
MORE: dict[str, Any] = {
    **EXPERTS,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 8,
    "sliding_window": 5,
    "logit_scale": 0.5,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.3,
}
MIXTURE = "Route SortPairs ExpertsIn ExpertsOut Add"
# The barriers of a layer, whose bf16 weights read prepared rows, and which of its operations are
# instructions of their own.
PLAIN = (5, "")
BOTH_SUMS = (6, "Add")  # attention and feed-forward beside each other
NORMED_SUMS = (8, "Norm Add Norm Add")  # what is added to the residual is normalised first
# Models whose layers differ from each other.
OTHERS = ("DeepseekV3ForCausalLM", "Lfm2ForCausalLM")
LAYERS_OF = {
    **dict.fromkeys([name for name in DECODERS if name not in OTHERS], PLAIN),
    **dict.fromkeys(("Gemma2ForCausalLM", "Gemma3ForCausalLM"), NORMED_SUMS),
    "Gemma3ForConditionalGeneration": NORMED_SUMS,
    **dict.fromkeys(("Glm4ForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM"), NORMED_SUMS),
    **dict.fromkeys(("CohereForCausalLM", "Cohere2ForCausalLM"), BOTH_SUMS),
    **dict.fromkeys(("GPTNeoXForCausalLM", "FalconForCausalLM"), BOTH_SUMS),
    # The norm is read by the router and by the experts.
    **dict.fromkeys(("MixtralForCausalLM", "Qwen3MoeForCausalLM"), (10, f"Norm {MIXTURE}")),
    **dict.fromkeys(("OlmoeForCausalLM", "GptOssForCausalLM"), (10, f"Norm {MIXTURE}")),
    # Each head's products before and behind attention, and the norms of latents.
    "DeepseekV2ForCausalLM": (13, f"HeadGemm HeadGemm Norm Norm {MIXTURE}"),
    "Qwen2MoeForCausalLM": (12, f"Norm {MIXTURE} Multiply Add"),  # and a shared expert
}


@pytest.mark.parametrize("architecture", LAYERS_OF)
def test_a_familys_layer_is_so_many_phases_and_nothing_else_is_done(architecture: str) -> None:
    more: dict[str, Any] = dict(MORE)
    if architecture == "Gemma3ForConditionalGeneration":
        more = {"text_config": {**SIZES, **MORE}}
    elif architecture in CONFIGS:
        more = {}
    model = make_model(architecture, **more)
    layout = place_layers(model)
    backend = NativeBackend(NativeOptions(num_threads=1, weights="bf16"))
    bind(model, backend, MadeUpWeights(model))
    backend.prepare(model, layout, 16)
    backend.make_cache(8)
    num_barriers, own_instructions = LAYERS_OF[architecture]
    layers = SIZES["num_hidden_layers"]
    instructions = backend.instructions
    # Two of the head; and if a sum is an instruction of its own, one more for the rows that are
    # selected before the last attention.
    has_sums = bool(own_instructions) and "Route" not in own_instructions
    others = 3 if has_sums and "Cohere" not in architecture else 2
    found = Counter(i.op for i in instructions if i.op not in FUSED - {"Norm"})
    expected = Counter(own_instructions.split() * layers)
    expected["Norm"] += 1  # of the wanted hidden states
    if architecture == "FalconForCausalLM":
        expected["Norm"] += 1  # one for both: all rows' keys and wanted rows' feed-forward
    if architecture == "GPT2LMHeadModel":
        expected["Add"] += 1  # of positions' embeddings
    barriers = len(backend.barriers)
    assert (barriers, found) == (layers * num_barriers + others, expected), (
        f"{architecture}: the recorded program is not that of its row in LAYERS_OF (above; a new "
        f"architecture has PLAIN). The row gives {layers} layers {num_barriers} barriers each, and "
        f"{others} outside of them; the program has {barriers}, and these operations as "
        f"instructions of their own: {dict(found)}. If the block needs "
        "them, add a row: NORMED_SUMS for norms after attention and MLP, BOTH_SUMS where both "
        "run beside each other"
    )
    gemms = [i for i in instructions if i.op == "Gemm" and i.matrix is not None]
    attends = [i for i in instructions if i.attend is not None]
    widths = {
        (i.attend.heads + 2 * i.attend.kv_heads) * i.attend.head_dim
        for i in attends
        if i.attend and not i.attend.latent
    }
    # Queries, keys and values are one matrix, so they are one product.
    for width in widths:
        assert sum(i.matrix.outputs == width for i in gemms if i.matrix) >= len(attends)
