"""A model's directory gives the tokenizer that the reference implementation loads from it."""

import json
import logging
from pathlib import Path

import pytest

from octavo.cli.trouble import as_flags
from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import frame
from octavo.text.tokenizer_files import tokenizer_from_directory
from tests.text.texts import SAMPLES
from tests.text.vocabularies import CONTROLS, byte_fallback, byte_level, spelled

END, START, TURN = CONTROLS


def _save(directory: Path, **files: object) -> Path:
    """Write a byte-level tokenizer.json, and each of `files` beside it as NAME.json."""
    backend = byte_level(spelled(words=True), None, ignore_merges=False)
    (directory / "tokenizer.json").write_text(backend.to_str(), "utf-8")
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return directory


def _listed(content: str, **flags: bool) -> dict[str, object]:
    return {"content": content, "normalized": False, "special": True, **flags}


def test_a_lone_tokenizer_json_is_enough(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_directory(_save(tmp_path))
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
    assert tokenizer.special_tokens == {}
    assert tokenizer.chat_templates == {}
    assert tokenizer.end_ids == frozenset()


def test_named_tokens_are_strings_or_objects(tmp_path: Path) -> None:
    config = {"bos_token": {"content": START}, "eos_token": TURN, "pad_token": None}
    fallback = {"eos_token": END, "pad_token": END, "unk_token": {"content": "<nowhere>"}}
    directory = _save(tmp_path, tokenizer_config=config, special_tokens_map=fallback)
    tokenizer = tokenizer_from_directory(directory)
    named = {"bos_token": START, "eos_token": TURN, "pad_token": END}
    assert tokenizer.special_tokens == named
    assert tokenizer.eos_id == tokenizer.token_to_id(TURN)
    assert tokenizer.unknown_id is None
    assert tokenizer.end_ids == {tokenizer.eos_id}


def test_generation_config_has_the_ids_that_end_generation(tmp_path: Path) -> None:
    config = {"eos_token": TURN}
    directory = _save(
        tmp_path,
        tokenizer_config=config,
        generation_config={"eos_token_id": [5, 7]},
        config={"eos_token_id": 9},
    )
    turn = tokenizer_from_directory(directory).eos_id
    assert tokenizer_from_directory(directory).end_ids == {5, 7, turn}
    (directory / "generation_config.json").unlink()
    assert tokenizer_from_directory(directory).end_ids == {9, turn}


@pytest.mark.parametrize("bos", [None, False, True])
@pytest.mark.parametrize("eos", [None, False, True])
def test_framing_by_the_configuration(tmp_path: Path, bos: bool | None, eos: bool | None) -> None:
    flags = {"add_bos_token": bos, "add_eos_token": eos}
    config = {"bos_token": START, "eos_token": TURN} | {
        name: flag for name, flag in flags.items() if flag is not None
    }
    tokenizer = tokenizer_from_directory(_save(tmp_path, tokenizer_config=config))
    plain = tokenizer.encode("x", add_special_tokens=False)
    before = [tokenizer.bos_id] if bos else []
    after = [tokenizer.eos_id] if eos else []
    assert tokenizer.encode("x") == [*before, *plain, *after]


def test_tokenizer_json_overrides_the_flags(tmp_path: Path) -> None:
    config = {"bos_token": START, "eos_token": TURN, "add_bos_token": False, "add_eos_token": True}
    directory = _save(tmp_path, tokenizer_config=config)
    backend = tokenizer_from_directory(directory).backend
    frame(backend, bos=START, eos=None)
    (directory / "tokenizer.json").write_text(backend.to_str(), "utf-8")
    tokenizer = tokenizer_from_directory(directory)
    plain = tokenizer.encode("x", add_special_tokens=False)
    assert tokenizer.encode("x") == [tokenizer.bos_id, *plain]


def test_listed_added_tokens_override_others(tmp_path: Path) -> None:
    plain = tokenizer_from_directory(_save(tmp_path))
    size, tool_call = plain.vocab_size, plain.token_to_id("<tool_call>")
    listed = {
        str(size + 1): _listed("<second>", special=False),
        str(size): _listed("<first>"),
        str(tool_call): _listed("<tool_call>", rstrip=True),
    }
    config = {"added_tokens_decoder": listed}
    tokenizer = tokenizer_from_directory(_save(tmp_path, tokenizer_config=config))
    assert tokenizer.encode("<first><second>") == [size, size + 1]
    assert tokenizer.special_ids == plain.special_ids | {size, tool_call}
    assert tokenizer.encode("<tool_call>  x") == tokenizer.encode("<tool_call>x")


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
@pytest.mark.parametrize("tokens", [["<tool_call>"], {"tool_token": "<tool_call>"}])
def test_tokens_listed_as_special_are_skipped(tmp_path: Path, key: str, tokens: object) -> None:
    tokenizer = tokenizer_from_directory(_save(tmp_path, tokenizer_config={key: tokens}))
    assert tokenizer.decode(tokenizer.encode("a<tool_call>b")) == "ab"


def test_chat_templates_are_found_wherever_they_are(tmp_path: Path) -> None:
    directory = _save(tmp_path, chat_template={"chat_template": "oldest"})
    assert tokenizer_from_directory(directory).chat_templates == {"default": "oldest"}
    _save(tmp_path, tokenizer_config={"chat_template": "old"})
    assert tokenizer_from_directory(directory).chat_templates == {"default": "old"}
    several = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    _save(tmp_path, tokenizer_config={"chat_template": several})
    assert tokenizer_from_directory(directory).chat_templates == {"default": "a", "tool_use": "b"}
    (directory / "chat_template.jinja").write_text("new", "utf-8")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "rag.jinja").write_text("r", "utf-8")
    assert tokenizer_from_directory(directory).chat_templates == {
        "default": "new",
        "tool_use": "b",
        "rag": "r",
    }


def test_a_setting_that_would_remove_spaces_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"clean_up_tokenization_spaces": True}
    tokenizer = tokenizer_from_directory(_save(tmp_path, tokenizer_config=config))
    assert tokenizer.decode(tokenizer.encode("a , b .")) == "a , b ."
    assert caplog.records == []  # with BPE the setting has no effect


def test_missing_and_broken_files_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TokenizerError, match="has no tokenizer"):
        tokenizer_from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot be used"):
        tokenizer_from_directory(tmp_path)
    directory = _save(tmp_path)
    for content, message in (
        ("{", "tokenizer_config.json is not valid JSON"),
        ("[]", "tokenizer_config.json is not a JSON object"),
        ('{"added_tokens_decoder": [1]}', "added_tokens_decoder must be an object of tokens"),
        ('{"added_tokens_decoder": {"x": {}}}', "has the key 'x', which is not a token id"),
        ('{"added_tokens_decoder": {"٥": {}}}', "has the key '٥', which is not a token id"),
        ('{"added_tokens_decoder": {"05": {}}}', "has the key '05', which is not a token id"),
        ('{"added_tokens_decoder": {"5": {}}}', r"added_tokens_decoder\[5\] has no content"),
        ('{"added_tokens_decoder": {"5": "x"}}', "do not belong together"),
        ('{"chat_template": 5}', "chat_template must be a text, or a list of objects"),
        ('{"chat_template": [{"name": "a"}]}', r"chat_template\[0\] must be an object with a name"),
        ('{"chat_template": ["a"]}', r"chat_template\[0\] must be an object with a name"),
        ('{"bos_token": "\\ud800"}', "holds half of a character .a surrogate. at .bos_token"),
        ('{"added_tokens_decoder": {"5": {"content": "<new>"}}}', "do not belong together"),
        ('{"add_bos_token": true, "bos_token": "<none>"}', None),
    ):
        (directory / "tokenizer_config.json").write_text(content, "utf-8")
        if message is not None:
            with pytest.raises(TokenizerError, match=message):
                tokenizer_from_directory(directory)
    with caplog.at_level(logging.WARNING):
        tokenizer = tokenizer_from_directory(directory)
    assert "'<none>', which is not in the vocabulary" in caplog.text
    assert tokenizer.encode("x") == tokenizer.encode("x", add_special_tokens=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"bos_token": START, "eos_token": TURN, "pad_token": END},
        {"bos_token": START, "eos_token": TURN, "add_bos_token": False, "add_eos_token": False},
        {"eos_token": TURN, "additional_special_tokens": ["<tool_call>"]},
    ],
)
@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_the_reference_implementation_agrees(
    tmp_path: Path, config: dict[str, object], kind: str
) -> None:
    transformers = pytest.importorskip("transformers")
    directory = _save(tmp_path, tokenizer_config=config)
    if kind == "byte fallback":
        named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
        config = {key: named.get(key, value) for key, value in config.items()}
        config.pop("additional_special_tokens", None)
        (directory / "tokenizer.json").write_text(byte_fallback().to_str(), "utf-8")
        (directory / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    ours = tokenizer_from_directory(directory)
    assert ours.special_ids == set(reference.all_special_ids) | {
        index for index, token in reference.added_tokens_decoder.items() if token.special
    }
    for text in SAMPLES:
        ids = reference.encode(text)
        assert ours.encode(text) == ids
        plain = reference.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False) == plain
        for skip in (False, True):
            decoded = reference.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == decoded


def test_an_error_explains_how_to_use_another_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(
        TokenizerError, match=r"has no tokenizer\.json; .*: tokenizer=MODEL"
    ) as caught:
        tokenizer_from_directory(tmp_path)
    assert "--tokenizer=MODEL" in as_flags(str(caught.value))
