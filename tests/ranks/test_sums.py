"""Ranks that add up what each makes of its inputs: their text, and what they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Lfm2Config,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
)

from octavo import LLM, SamplingParams
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments
from octavo.options.speculation import SpeculativeConfig
from tests.api.tiny import make_tokenizer_files
from tests.backends.native import _native_test
from tests.client.clients import LIMIT
from tests.quantize.made import write_model
from tests.ranks.followers import check_deaths
from tests.ranks.small import FORMATS, TIGHT, answers, write
from tests.ranks.test_deaths import PROGRAM

DRAFTER = SpeculativeConfig("draft_model", model="drafter", num_speculative_tokens=2)
SUMS: dict[str, Any] = {"tensor_parallel_form": "sums"}
BYTES = 16 << 20
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 32,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 3,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
# With more ranks than KV heads, several ranks have the same one.
CASES: dict[str, tuple[PretrainedConfig, int]] = {
    "dense": (LlamaConfig(**SIZES), 2),
    "dense, a KV head for two ranks": (LlamaConfig(**SIZES, tie_word_embeddings=True), 4),
    "dense, a KV head for all": (LlamaConfig(**{**SIZES, "num_key_value_heads": 1}), 3),
    "experts": (MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2), 2),
    "windows, limits of scores": (Gemma2Config(**SIZES, sliding_window=9), 4),
    "latents, experts": (
        DeepseekV3Config(**{**SIZES, "num_key_value_heads": 12, "head_dim": 8}, **LATENT),
        2,
    ),
    "states": (Lfm2Config(**SIZES, full_attn_idxs=[1], block_multiple_of=16), 2),
}
PROMPTS = [[3 + 5 * j % 90 for j in range(37)], [7, 8, 9], [3 + 7 * j % 90 for j in range(20)]]


def _reference(config: PretrainedConfig, directory: Path) -> list[list[int]]:
    """Save a random model; return what transformers generates greedily in fp32."""
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    reference = make(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    reference.save_pretrained(directory)
    make_tokenizer_files(directory)
    found = []
    for prompt in PROMPTS:
        settings: dict[str, Any] = {"max_new_tokens": 14, "do_sample": False, "eos_token_id": None}
        with torch.no_grad():
            tokens = reference.generate(torch.tensor([prompt]), pad_token_id=0, **settings)
        found.append(tokens[0, len(prompt) :].tolist())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_greedy_text_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """The text is equal in fp32, and no bit changes when the engine runs again."""
    config, ranks = CASES[name]
    expected = _reference(config, tmp_path)
    settings = SamplingParams(max_tokens=14, temperature=0.0, ignore_eos=True, logprobs=2)
    runs = []
    for threads in (1, 2):
        options: dict[str, Any] = {**TIGHT, **SUMS, "num_threads": threads, "dtype": "float32"}
        options["num_gpu_blocks_override"] = 14  # a prompt in two groups of layers fits
        with LLM(str(tmp_path), tensor_parallel_size=ranks, **options) as llm:
            outputs = llm.generate(PROMPTS, settings, use_tqdm=False)
        assert [list(each.outputs[0].token_ids) for each in outputs] == expected
        runs.append([each.outputs[0].logprobs for each in outputs])
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["bf16", "int8", "int4"])
def test_formats_differ_by_rounding_alone(format_: str, tmp_path: Path) -> None:
    """Probabilities of a prompt's tokens are near those of one process, and the same each time."""
    model, options = write(tmp_path, "LlamaForCausalLM"), FORMATS[format_]
    expected, _ = answers(model, **options)
    found, snapshot = answers(model, tensor_parallel_size=2, **SUMS, **options)
    assert snapshot.num_preemptions > 0
    assert snapshot.num_cached_tokens > 0
    (prompt, reference) = (run[2][2] for run in (found, expected))
    for ours, theirs in zip(prompt[1:], reference[1:], strict=True):
        for token in ours.keys() & theirs.keys():
            assert ours[token].logprob == pytest.approx(theirs[token].logprob, abs=0.1)
    assert found == answers(model, tensor_parallel_size=2, **SUMS, **options)[0]


@pytest.mark.slow
def test_samples_of_one_prompt_copy_its_block_in_every_rank(tmp_path: Path) -> None:
    model = str(write(tmp_path, "LlamaForCausalLM"))
    settings = SamplingParams(n=3, max_tokens=12, temperature=1.0, seed=3, ignore_eos=True)
    found = []
    for options in ({}, {"tensor_parallel_size": 2, **SUMS}):
        with LLM(model, **TIGHT, dtype="float32", **options) as llm:
            (output,) = llm.generate([PROMPTS[0]], settings, use_tqdm=False)
        found.append([list(each.token_ids) for each in output.outputs])
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens in found[0]}) == 3


@pytest.mark.slow
def test_streams_continue_when_a_rank_is_killed(tmp_path: Path) -> None:
    check_deaths(tmp_path, PROGRAM, tensor_parallel_size=2, dtype="float32", **SUMS)


@pytest.mark.slow
def test_a_norm_over_all_heads_is_refused(tmp_path: Path) -> None:
    model = str(write(tmp_path, "Olmo2ForCausalLM"))
    with pytest.raises(ConfigError, match=r"tensor_parallel_form=sums: .*all its heads together"):
        LLM(model, **TIGHT, tensor_parallel_size=2, **SUMS)


@pytest.mark.slow
def test_heads_that_ranks_cannot_divide_are_refused(tmp_path: Path) -> None:
    model = str(write(tmp_path, "LlamaForCausalLM"))
    with pytest.raises(ConfigError, match=r"tensor_parallel_form=sums: .*do not divide among 3"):
        LLM(model, **TIGHT, tensor_parallel_size=3, **SUMS)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tensor_parallel_size": 1}, "is for ranks, and there is one"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 with"),
        ({"enable_lora": True}, "enable_lora with"),
        ({"enable_expert_parallel": True}, "enable_expert_parallel with"),
        ({"packed_cache": "auto"}, "packed_cache with"),
        ({"speculative_config": DRAFTER}, "speculative_config with"),
    ],
)
def test_what_has_no_sums_is_refused_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        EngineArguments("model", **{"tensor_parallel_size": 2, **SUMS, **options})


def _several(ranks: int) -> list[_native_test.TestSums]:
    """Return all ranks of a group, in one process."""
    memory = os.memfd_create("sums")
    os.ftruncate(memory, BYTES)
    made = [_native_test.TestSums(memory, BYTES, rank, ranks) for rank in range(ranks)]
    os.close(memory)
    return made


def test_sums_are_those_of_their_own_round() -> None:
    """No rank reads what another one has written for the next sum."""
    ranks = _several(3)
    wrong: list[int] = []
    threads = [
        threading.Thread(target=lambda each=each: wrong.append(each.add_up(2000, 300)[1]))
        for each in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0, 0]


def test_a_rank_that_waits_in_a_sum_says_why_the_group_has_ended() -> None:
    first, second = _several(2)
    caught: list[str] = []

    def wait() -> None:
        try:
            first.add_up(1, 10)
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    second.end("rank 1 has run out of memory")
    thread.join()
    assert caught == ["rank 1 has run out of memory"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "BertModel", "MPNetModel"])
def test_vectors_are_those_of_one_process(kind: str, tmp_path: Path) -> None:
    """The first rank has them whole, of a decoder and of encoders that keep nothing.

    MPNet has a number for each head and distance, of which a rank needs those of its heads.
    """
    model = str(write_model(tmp_path / kind, kind, max_position_embeddings=130))
    found = []
    for options in ({}, {"tensor_parallel_size": 2, **SUMS}):
        sizes: dict[str, Any] = {**TIGHT, "dtype": "float32", **options}
        with LLM(model, runner="pooling", **sizes) as llm:
            outputs = llm.embed([[4, 5, 6], [*range(3, 40)]])
        found.append([each.outputs.embedding for each in outputs])
    assert found[0] == [pytest.approx(vector, abs=1e-5) for vector in found[1]]


_COPIES_IN_A_CHILD = """
import os
import sys
import numpy as np
from octavo import LLM
from octavo.backends.native.backend import _NO_DRAWS
from octavo.backends.step import HostBatch
from tests.ranks.small import TIGHT
llm = LLM(sys.argv[1], **TIGHT, tensor_parallel_size=2, tensor_parallel_form="sums")
backend = llm._model.engine.core._executor.runner._backend
none, starts = np.zeros(0, np.int32), np.zeros(1, np.int32)
batch = HostBatch(none, none, starts, (np.zeros((0, 1), np.int32),), none, copies=((1, 2, 0),))
child = os.fork()
if child == 0:
    try:
        backend.step(batch, _NO_DRAWS).collect()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
llm.close()
"""


@pytest.mark.slow
def test_a_forked_process_copies_no_block_of_the_ranks(tmp_path: Path) -> None:
    model = str(write(tmp_path, "LlamaForCausalLM"))
    command = [sys.executable, "-c", _COPIES_IN_A_CHILD, model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert "ranks do not exist in a process that was forked" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_rows_of_every_rank_are_in_the_bill(ranks: int, tmp_path: Path) -> None:
    """A step takes no more than the estimate, which decides whether a model fits."""
    sizes: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
    }
    model = write_model(tmp_path, "LlamaForCausalLM", **sizes, num_key_value_heads=4, head_dim=64)
    with LLM(str(model), tensor_parallel_size=ranks, num_threads=1, **SUMS) as llm:
        config = llm._model.engine.config
        backend: Any = llm._model.engine.core._executor.runner._backend
        taken = backend.reserve(config.largest_step, 0)
    assert taken <= config.bill.step_bytes < 2 * taken


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_logits_of_all_ranks_are_counted_once(ranks: int, tmp_path: Path) -> None:
    """Logits lie in memory that all ranks map, and may be most of what a step takes."""
    model = write_model(tmp_path, "LlamaForCausalLM", vocab_size=32_000, num_key_value_heads=4)
    many: dict[str, Any] = {**SUMS, "max_num_seqs": 256, "max_num_batched_tokens": 512}
    with LLM(str(model), tensor_parallel_size=ranks, num_threads=1, **many) as llm:
        config = llm._model.engine.config
        backend: Any = llm._model.engine.core._executor.runner._backend
        taken = backend.reserve(config.largest_step, 0)
    logits = config.largest_step.wanted_rows * 32_000 * 4
    assert logits < taken <= config.bill.step_bytes < 2 * taken
    assert taken < ranks * logits
