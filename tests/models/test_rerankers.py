"""Rerankers made of generators: as published, converted, and with sentence-transformers' files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from octavo import LLM, PoolingParams, SamplingParams
from octavo.core.config import ConfigError
from octavo.core.sampling_params import RequestError
from octavo.loader import CheckpointError
from tests.api.tiny import TEXTS, make_tokenizer_files
from tests.models.test_pooled_decoders import SIZES, open_llm
from tests.models.test_sentence_files import write

TEMPLATE = (
    "{% for message in messages if message.role == 'system' %}{{ message.content }}{% endfor %}"
    "{% for message in messages if message.role == 'query' %}Q {{ message.content }}{% endfor %}"
    "{% for message in messages if message.role == 'document' %} D {{ message.content }}"
    "{% endfor %} !"
)
NO, YES = 2, 3
QUERY = TEXTS[0]
AS_PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}
RAW = PoolingParams(use_activation=False)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a generator whose vocabulary has the answers."""
    directory = tmp_path_factory.mktemp("reranker")
    torch.manual_seed(3)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    return make_tokenizer_files(directory, TEMPLATE, ("<s>", "</s>", "no", "yes"))


@pytest.fixture(scope="module")
def expected(directory: Path) -> np.ndarray:
    """Return the logits of no and of yes behind the prompt of each document."""
    model = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    rows = []
    with open_llm(directory, "torch") as llm, torch.no_grad():
        for text in TEXTS:
            prompt = llm.get_tokenizer().encode(f"Q {QUERY} D {text} !", add_special_tokens=False)
            logits: Any = model(torch.tensor([prompt])).logits
            rows.append(logits[0, -1, [NO, YES]].numpy())
    return np.array(rows)


def copy_of(directory: Path, place: Path, files: dict[str, Any]) -> Path:
    """Return the same model with other files beside it; objects are changed in part."""
    for path in directory.iterdir():
        content = path.read_bytes()
        if isinstance(files.get(path.name), dict):
            content = json.dumps({**json.loads(content), **files[path.name]}).encode()
        (place / path.name).write_bytes(content)
    return write(place, {name: files[name] for name in files if not (place / name).exists()})


def scores(llm: LLM, **options: Any) -> list[float]:
    outputs = llm.score(QUERY, list(TEXTS), use_tqdm=False, **options)
    return [output.outputs.score for output in outputs]


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_the_published_model_is_a_reranker_by_its_overrides(
    directory: Path, expected: np.ndarray, backend: str
) -> None:
    difference = expected[:, 1] - expected[:, 0]
    with open_llm(directory, backend, hf_overrides=AS_PUBLISHED) as llm:
        np.testing.assert_allclose(scores(llm, pooling_params=RAW), difference, atol=1e-5)
        np.testing.assert_allclose(scores(llm), 1 / (1 + np.exp(-difference)), atol=1e-5)
    each = {**AS_PUBLISHED, "method": "no_post_processing"}
    with open_llm(directory, backend, hf_overrides=json.dumps(each)) as llm:
        prompts = [f"Q {QUERY} D {text} !" for text in TEXTS]
        prompts = [llm.get_tokenizer().encode(each, add_special_tokens=False) for each in prompts]
        found = [output.outputs.probs for output in llm.classify(prompts, RAW, use_tqdm=False)]
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_its_score_is_the_probability_of_its_answer(directory: Path) -> None:
    """The recipe for generators: a token among the answers, and their log-probabilities."""
    with open_llm(directory, "native", hf_overrides=AS_PUBLISHED) as llm:
        found = scores(llm)
    asked = SamplingParams(max_tokens=1, temperature=0.0, logprobs=-1, allowed_token_ids=(NO, YES))
    with open_llm(directory, "native", max_logprobs=-1) as llm:
        prompts = [f"Q {QUERY} D {text} !" for text in TEXTS]
        prompts = [llm.get_tokenizer().encode(each, add_special_tokens=False) for each in prompts]
        for output, score in zip(llm.generate(prompts, asked, use_tqdm=False), found, strict=True):
            logprobs: Any = output.outputs[0].logprobs
            no, yes = (np.exp(logprobs[0][token].logprob) for token in (NO, YES))
            assert yes / (no + yes) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_converted_classifier_gives_the_same(
    directory: Path, expected: np.ndarray, backend: str, tmp_path: Path
) -> None:
    stated = {"architectures": AS_PUBLISHED["architectures"], "num_labels": 1}
    identity = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    copy_of(directory, tmp_path, {"config.json": stated | identity})
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    tensors["score.weight"] = embedding[YES : YES + 1] - embedding[NO : NO + 1]
    save_file(tensors, tmp_path / "model.safetensors")
    with open_llm(tmp_path, backend) as llm:
        np.testing.assert_allclose(scores(llm), expected[:, 1] - expected[:, 0], atol=1e-5)


def test_files_say_whether_a_classifier_of_one_class_is_a_reranker(
    directory: Path, tmp_path: Path
) -> None:
    """A reward model without a template is not asked as Qwen3-Reranker is."""
    copy_of(directory, tmp_path, {"tokenizer_config.json": {"chat_template": None}})
    with open_llm(tmp_path, "native", hf_overrides=AS_PUBLISHED) as llm:
        assert llm._model.facts.pooling.pair_form == "qwen3_reranker"
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["score.weight"] = tensors["model.embed_tokens.weight"][:1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    stated = {"architectures": AS_PUBLISHED["architectures"], "num_labels": 1}
    with open_llm(tmp_path, "native", hf_overrides=stated) as llm:
        outputs = llm.score(QUERY, TEXTS[1], use_tqdm=False)
        plain = llm.get_tokenizer().encode_framed(QUERY, TEXTS[1])[0]
        assert outputs[0].prompt_token_ids == plain
    stated["is_original_qwen3_reranker"] = True
    with open_llm(tmp_path, "native", hf_overrides=stated) as llm:
        assert llm._model.facts.pooling.pair_form == "qwen3_reranker"
        with pytest.raises(RequestError, match="the prompt has 377 tokens"):
            llm.score(QUERY, TEXTS[1], use_tqdm=False)


def test_sentence_transformers_files_make_a_reranker_too(
    directory: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    kinds = {"": "base.modules.transformer.Transformer"}
    kinds["1_LogitScore"] = "cross_encoder.modules.logit_score.LogitScore"
    files = {
        "modules.json": [
            {"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds.items()
        ],
        "1_LogitScore/config.json": {"true_token_id": YES, "false_token_id": NO},
        "config_sentence_transformers.json": {
            "model_type": "CrossEncoder",
            "prompts": {"plain": "", "web": "Find it. "},
            "default_prompt_name": "web",
            "activation_fn": "torch.nn.modules.linear.Identity",
        },
    }
    copy_of(directory, tmp_path, files)
    with open_llm(tmp_path, "native") as llm:
        assert llm._model.facts.pooling.tasks == ("classify", "score")
        own = scores(llm)
        assert own == scores(llm, instruction="Find it. ")
        assert own != pytest.approx(scores(llm, instruction=" "))
    (tmp_path / "config_sentence_transformers.json").unlink()
    with open_llm(tmp_path, "native") as llm:
        difference = expected[:, 1] - expected[:, 0]
        np.testing.assert_allclose(scores(llm, pooling_params=RAW), difference, atol=1e-5)
        np.testing.assert_allclose(scores(llm), 1 / (1 + np.exp(-difference)), atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"classifier_from_token": ["no", "perhaps"]}, "the vocabulary has no token 'perhaps'"),
        ({"classifier_from_token": ["no"]}, "must have two tokens for from_2_way_softmax"),
        ({"classifier_from_token": ["no"] * 65}, "has 65 tokens, at most 64"),
        ({"method": "mean"}, "method is 'mean'; known are from_2_way_softmax and"),
        ({"classifier_from_token": None}, "score.weight is missing"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing, of whose rows"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.GELU"}},
            "the activation of the scores is 'torch.nn.GELU'; known are Identity, Sigmoid",
        ),
    ],
)
def test_what_makes_no_classifier_is_refused(
    directory: Path, overrides: dict[str, Any], message: str
) -> None:
    values = AS_PUBLISHED | overrides
    given = {key: value for key, value in values.items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        open_llm(directory, "native", hf_overrides=given)


def test_overrides_are_an_object(directory: Path) -> None:
    for wrong in ("[]", "{", 3):
        with pytest.raises(ConfigError, match=r"hf_overrides: .* an example is"):
            open_llm(directory, "native", hf_overrides=wrong)
