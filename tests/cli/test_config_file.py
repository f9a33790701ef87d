"""Dotted flags and files of options: the same checks, errors and results as flags."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from octavo.cli.commands import COMMANDS
from octavo.cli.engine_options import engine_arguments
from octavo.cli.execute import make_parser
from octavo.cli.flags.dotted import joined
from octavo.cli.flags.flat_yaml import YamlError, read
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.server_options import server_settings
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments
from octavo.options.server import ServerSettings
from octavo.options.speculation import SpeculativeConfig


@cache
def serve_parser() -> Parser:
    return make_parser(COMMANDS["serve"])


def both(*words: str) -> tuple[EngineArguments, ServerSettings]:
    arguments = serve_parser().parse_args(words)
    return engine_arguments(arguments), server_settings(arguments)


def test_dotted_flags_are_keys_of_an_object() -> None:
    engine, _ = both(
        *("m", "--speculative-config.method", "ngram"),
        *("--speculative_config.num_speculative_tokens=7", "--max-num-seqs", "3"),
    )
    assert engine.speculative_config == SpeculativeConfig("ngram", 7)
    assert engine.max_num_seqs == 3
    engine, _ = both("-sc.method=ngram", "m")
    assert (engine.model, engine.speculative_config) == ("m", SpeculativeConfig("ngram"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--a.b", "1", "x"], ["--a={}", "x"]),
        (["--a.b.c=1", "--a.b.d", "y", "--a.e"], ["--a={}"]),
        (["--a.l+", "1", "--a.l+=x,true"], ["--a={}"]),
        (["--a.b", "-1", "--c"], ["--a={}", "--c"]),
        (["--a.b", "--c", "d"], ["--a={}", "--c", "d"]),
        (["a.b", "-0.5", "--c", "x.y", "--", "--a.b", "c"], None),
    ],
)
def test_words_are_joined(words: list[str], expected: list[str] | None) -> None:
    objects = {
        "--a.b 1 x": {"b": 1},
        "--a.b.c=1 --a.b.d y --a.e": {"b": {"c": 1, "d": "y"}, "e": True},
        "--a.l+ 1 --a.l+=x,true": {"l": [1, "x", True]},
        "--a.b -1 --c": {"b": -1},
        "--a.b --c d": {"b": True},
    }
    if expected is None:
        assert joined(words) == words
        return
    value = json.dumps(objects[" ".join(words)])
    assert joined(words) == [word.replace("{}", value) for word in expected]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--a.b=1", "--a={}"], "--a and --a.b are both given"),
        (["--a.b=1", "--a.b", "2"], "--a.b is given twice"),
        (["--a.b=1", "--a.b.c=2"], "'b' has a value already"),
        (["--a.b=1", "--a.b+=2"], "'b' has a value already, and is no list"),
        (["--a" + ".b" * 20 + "=1"], "more than 16 keys"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        joined(words)


def test_a_dotted_flag_has_the_errors_of_the_flag() -> None:
    with pytest.raises(UsageError, match="--kv-transfer-config is not supported: KV stays"):
        both("m", "--kv-transfer-config.kv_connector", "x")
    with pytest.raises(UsageError, match="no option --speculativ-config; did you mean --specul"):
        both("m", "--speculativ-config.method", "ngram")
    with pytest.raises(ConfigError, match="there is no key 'methods'; did you mean method"):
        both("m", "--speculative-config.methods", "ngram")
    with pytest.raises(UsageError, match="are both given; write all keys into one"):
        both("m", "--speculative-config.method=ngram", "--speculative-config", "{}")
    with pytest.raises(UsageError, match="--strict takes no value"):
        both("m", "--strict.x", "1")


YAML = """\
# a comment
model: some/model   # the model
port: 8123
host: "127.0.0.1"
served-model-name: [one, 'two']
max_model_len: 32k
enable-prefix-caching: false
strict: true
public-metrics: no
chat-template: '{{ messages }}'
allowed-host:
- a.example
- b.example
api-key:
  - first-key
  - second-key
speculative-config:
  method: ngram
  num_speculative_tokens: 7
override-generation-config: {temperature: 0.5, top_k: 3}
generation-config: ~
"""


def expected() -> tuple[EngineArguments, ServerSettings]:
    return (
        EngineArguments(
            model="some/model",
            max_model_len=32_000,
            enable_prefix_caching=False,
            speculative_config=SpeculativeConfig("ngram", 7),
            override_generation_config={"temperature": 0.5, "top_k": 3},
        ),
        ServerSettings(
            port=8123,
            served_model_name=("one", "two"),
            strict=True,
            chat_template="{{ messages }}",
            allowed_hosts=("a.example", "b.example"),
            api_keys=("first-key", "second-key"),
        ),
    )


def test_a_file_has_the_names_of_flags(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(YAML, "utf-8")
    assert both("--config", str(file)) == both(f"--config={file}") == expected()
    file = tmp_path / "serve.json"
    file.write_text(json.dumps(yaml.safe_load(YAML)), "utf-8")
    assert both("--config", str(file)) == expected()
    file = tmp_path / "serve.toml"
    text = 'port = 8123\nstrict = true\n[speculative-config]\nmethod = "ngram"\n'
    file.write_text(text, "utf-8")
    engine, server = both("m", "--config", str(file))
    assert engine.speculative_config == SpeculativeConfig("ngram")
    assert (engine.model, server.port, server.strict) == ("m", 8123, True)


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(YAML, "utf-8")
    engine, server = both(
        *("other", "--config", str(file), "--port", "9", "--api-key", "third-key"),
        *("--enable-prefix-caching", "--speculative-config.method=ngram", "-c", "64"),
    )
    assert (engine.model, engine.max_model_len, engine.enable_prefix_caching) == ("other", 64, True)
    assert engine.speculative_config == SpeculativeConfig("ngram")
    assert (server.port, server.api_keys, server.strict) == (9, ("third-key",), True)


def test_values_in_lists_may_begin_with_a_dash(tmp_path: Path) -> None:
    """Keys are often random texts of letters, digits, dashes and underscores."""
    file = tmp_path / "serve.yaml"
    file.write_text("api-key: [first-key, -port, --strict]", "utf-8")
    _, server = both("m", "--config", str(file))
    assert (server.api_keys, server.strict) == (("first-key", "-port", "--strict"), False)


@pytest.mark.parametrize("value", ["", "~", "''", "[]", "[a, ~]", "yes", "[a, 1.50]", "{a: b}"])
@pytest.mark.parametrize("name", ["api-key", "api_key_file", "ssl-certfile", "ssl-cert-file"])
def test_what_closes_a_server_has_a_value(tmp_path: Path, name: str, value: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(f"{name}: {value}", "utf-8")
    with pytest.raises(UsageError, match="needs a text"):
        both("m", "--config", str(file))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "ignore-patterns: [a, -b]", "a value in a list begins with a dash"),
        ("a.yaml", "max-modl-len: 5", "there is no option --max-modl-len; did you mean"),
        ("a.yaml", "port: many", "argument --port: invalid int value: 'many'"),
        ("a.yaml", "enable-ep-weight-filter: true", "--enable-ep-weight-filter is not supported"),
        ("a.yaml", "config: b.yaml", "a file of options names no other"),
        ("a.yaml", "port: 1\nport: 2", "line 2: the key 'port' is there twice"),
        ("a.yaml", "max_num_seqs: 1\nmax-num-seqs: 2", "'max-num-seqs' is there twice"),
        ("a.yaml", "- a", "it must have the names of flags as keys"),
        ("a.yaml", "a: &x 1", "line 1: '&' begins something else than a text"),
        ("a.toml", "port = ", "a.toml: "),
        ("a.json", "{", "a.json: "),
        ("a.json", "[]", "it must have the names of flags as keys"),
        ("a.txt", "port: 1", "a file of options ends in .yaml, .yml, .toml, .json"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    file = tmp_path / name
    file.write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        both("m", "--config", str(file))
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    large, binary = tmp_path / "large.json", tmp_path / "binary.json"
    large.write_text('"' + "x" * (1 << 20) + '"')
    binary.write_bytes(b"\xff\xfe")
    for words, message in (
        (["--config", str(tmp_path / "none.yaml")], "cannot be read: no such file"),
        (["--config", str(large)], "more than 1,048,576 bytes"),
        (["--config", str(binary)], "is not UTF-8"),
        (["--config"], "--config needs the name of a file"),
        (["--config=a.yaml", "--config", "b.yaml"], "--config is given 2 times"),
    ):
        with pytest.raises(UsageError, match=message):
            both("m", *words)
    zero = tmp_path / "zero.yaml"
    zero.write_text("max-num-seqs: 0")
    with pytest.raises(ConfigError, match="max_num_seqs=0 must be at least 1"):
        both("m", "--config", str(zero))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\na: 1\n",
        "# nothing\n\n",
        YAML,
        "a: [1, [2, 3], {b: c, d: 'e''f'}]",
        'a: "x\\ty\\u00e9 # no comment"\nb: it is # a comment\nc: x#y',
        "a:\n  b:\n    c: 1\n  d: [x]\ne: 2",
        "a: [ ]\nb: { }\nc:\nd: ''",
        "a: 1.5\nb: -3\nc: 1.5e+3\nd: 0.25",
        "a: yes\nb: Off\nc: TRUE\nd: Null\ne: NO",
        "a: /path/to it\nb: http://host:80/x\nc: org/name@v1:Q4_K_M\nd: 32k\ne: 4GiB",
        "a:\n- x\n- 2\nb:\n    - y",
        "'a b': 1\n\"c\": 2",
        "- a\n- [b]\n- 1",
        "host: 127.0.0.1\nb: [0.0.0.0, '::']",
    ],
)
def test_yaml_is_read_as_by_others(text: str) -> None:
    assert read(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: &x 1", 1),
        ("a: 1\nb: *x", 2),
        ("a: !!int 1", 1),
        ("a: |\n  text", 1),
        ("a: >\n  text", 1),
        ("a: 010", 1),
        ("a: 1_000", 1),
        ("a: 12:30:45", 1),
        ("a: 2026-01-31", 1),
        ("a: 0x10", 1),
        ("a: .inf", 1),
        ("a: 1e5", 1),
        ("a: [1,\n 2]", 1),
        ("a: {b: 1", 1),
        ("a: 'x", 1),
        ('a: "\\x"', 1),
        ("a: b: c", 1),
        ("a: it 's # c", 1),
        ("a\n", 1),
        ("a: 1\n  b: 2", 2),
        ("  a: 1\nb: 2", 2),
        ("a:\n\tb: 1", 2),
        ("a: x\n---\nb: y", 2),
        ("a:\n- b: 1", 2),
        ("<<: {a: 1}", 1),
        ("? a", 1),
        ("yes: 1", 1),
        ("5: x", 1),
        ("a: {null: 1}", 1),
        ("a : 1", 1),
        ("a: @x", 1),
        ("a: [x] y", 1),
    ],
)
def test_other_yaml_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(YamlError, match=f"^line {line}: "):
        read(text)


def test_what_is_read_of_damaged_yaml_is_what_others_read() -> None:
    """A text is refused, or means the same to another reader."""
    generator = random.Random(1)
    num_read = 0
    for _ in range(2000):
        text = list(YAML)
        for _ in range(generator.randrange(1, 4)):
            place = generator.randrange(len(text))
            text[place] = generator.choice(" \n:#'\"[]{},-x1~|&!")
        damaged = "".join(text)
        try:
            found = read(damaged)
        except YamlError:
            continue
        num_read += 1
        assert found == yaml.safe_load(damaged), damaged
    assert num_read > 200


def test_deep_values_are_refused() -> None:
    for text in ("a: " + "[" * 1000, "\n".join(" " * depth + "a:" for depth in range(100))):
        with pytest.raises(YamlError, match="nested more than 16 deep"):
            read(text)
