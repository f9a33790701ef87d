"""Tests of the formats by name, of their detection, and of users' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.formats.parser import make_parser
from octavo.formats.protocol import FormatError
from octavo.formats.registry import (
    choose,
    detect,
    load_plugin,
    reasoning_format,
    reasoning_names,
    tool_format,
    tool_names,
)
from tests.formats.transcript import TOOLS, message_of

# Passages of published templates that show how calls and reasoning are written.
TEMPLATES = [
    (
        "hermes",
        "qwen3",
        "<|im_start|> <tool_call> arguments {% if enable_thinking %} '<think>\\n\\n</think>' }}",
    ),
    ("hermes", None, '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}'),
    ("qwen3_coder", None, "<tool_call>\n<function=example>\n<parameter=example_parameter_1>"),
    ("granite", None, "<|start_of_role|>assistant<|end_of_role|><|tool_call|>"),
    ("granite4", None, '<|start_of_role|> <tool_call>\n{"name": "arguments"}</tool_call>'),
    ("llama3_json", None, '<|eot_id|> {"name": function name, "parameters": dictionary}'),
    ("llama4_pythonic", None, "<|header_start|>assistant<|header_end|><|python_start|>"),
    ("mistral", None, '[TOOL_CALLS] [{"name": "[/AVAILABLE_TOOLS]'),
    ("mistral_v11", "mistral", "[TOOL_CALLS]name[ARGS] [THINK] [/THINK]"),
    (
        "deepseek_v3",
        "deepseek_v3",
        "<｜Assistant｜></think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\n```json",
    ),
    (
        "deepseek_v31",
        "deepseek_v3",
        "<｜Assistant｜></think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>",
    ),
    (
        "deepseek_v32",
        "deepseek_v3",
        '<｜Assistant｜></think>｜DSML｜ function_calls <invoke name="$NAME"> string="true|false"',
    ),
    ("kimi_k2", "kimi_k2", "<|im_middle|><|tool_calls_section_begin|></think>"),
    ("kimi_k2", None, "<|im_system|>tool_declare<|im_middle|>"),
    ("openai", "openai_gptoss", "<|start|>assistant<|channel|>analysis<|message|><|end|><|call|>"),
    ("glm45", "glm45", "[gMASK]<sop><tool_call>{name}\n<arg_key>k</arg_key>\n<arg_value></think>"),
    ("glm47", "glm45", "[gMASK]<sop><tool_call>{name}<arg_key>k</arg_key><arg_value></think>"),
    ("minimax_m2", "minimax_m2", "]~b]ai\n<think>\n<minimax:tool_call>"),
    ("seed_oss", "seed_oss", "<seed:tool_call>\n<function=example_function_name><seed:think>"),
    ("step3", "step3", "<|BOT|>assistant\n<think><｜tool_calls_begin｜><steptml:invoke name="),
    ("nemotron_json", "nemotron_v3", "<TOOLCALL>[</TOOLCALL><SPECIAL_12><think>"),
    ("cohere_command3", "cohere_command3", "<|START_ACTION|>[\n<|END_ACTION|><|START_THINKING|>"),
    ("phi4_mini_json", None, "<|tool|>{{ tools }}<|/tool|>"),
    ("olmo3", "olmo3", "<|im_start|>assistant\n<think><function_calls>"),
    ("lfm2", None, "List of tools: <|tool_list_start|>["),
    ("functiongemma", None, "<start_function_call>call:{{ name }}"),
    ("gemma4", "gemma4", "<|tool_call>call:{{ name }}}<tool_call|><|channel>thought\n<channel|>"),
    ("internlm", None, "<|action_start|><|plugin|>"),
    ("jamba", None, "<|bom|><|assistant|><tool_calls>["),
    ("hunyuan_a13b", "hunyuan_a13b", "<|extra_0|><think>\n</think><answer>\n<tool_calls>["),
    ("longcat", None, "<longcat_tool_call>"),
    (None, "deepseek_r1", "{{ '<think>\\n' }}"),
    (None, None, "{{ '<|im_start|>' + message['role'] + message['content'] + '<|im_end|>' }}"),
]

PLUGIN = """
[tools.house_style]
detect = [["<<call>>"]]
[[tools.house_style.forms]]
call = ["<<call>>"]
call_end = ["<</call>>"]
body = { kind = "json", name = "fn", arguments = ["args"] }

[reasoning.house_style]
open = ["<<hm>>"]
close = ["<</hm>>"]
"""


@pytest.mark.parametrize(("tools", "reasoning", "template"), TEMPLATES)
def test_a_template_shows_its_formats(
    tools: str | None, reasoning: str | None, template: str
) -> None:
    """The formats are found in the template's text."""
    found = detect(template, ())
    assert (found.tools and found.tools.name) == tools
    assert (found.reasoning and found.reasoning.name) == reasoning


def test_special_tokens_show_formats_too() -> None:
    """Marks that only the tokenizer has are found."""
    found = detect("{{ messages }}", ["<|tool_calls_section_begin|>", "</s>"])
    assert found.tools == tool_format("kimi_k2")


def test_every_format_is_detected_or_has_no_sign() -> None:
    """The table above covers each format that has signs."""
    shown = {name for name, _, _ in TEMPLATES}
    with_signs = {name for name in tool_names() if tool_format(name).detect}
    assert with_signs - shown <= {"ernie45", "granite-20b-fc"}


def test_a_given_name_wins_over_the_template() -> None:
    """A name replaces what the template shows, and "none" switches it off."""
    template = "<tool_call> arguments <think>"
    assert choose(template, ()).tools == tool_format("hermes")
    assert choose(template, (), tools="pythonic").tools == tool_format("pythonic")
    assert choose(template, (), tools="none", reasoning="none").marks == frozenset()
    assert choose("", (), reasoning="seed_oss").reasoning == reasoning_format("seed_oss")


def test_a_name_stands_for_its_later_variant() -> None:
    """The name of Mistral's format gives the variant that the template shows."""
    assert choose("[TOOL_CALLS][ARGS]", (), tools="mistral").tools == tool_format("mistral_v11")
    assert choose("[TOOL_CALLS]", (), tools="mistral").tools == tool_format("mistral")


def test_a_format_brings_the_reasoning_that_it_needs() -> None:
    """The calls of gpt-oss are read with its channels."""
    assert choose("", (), tools="openai").reasoning == reasoning_format("openai_gptoss")


def test_only_marks_are_kept_of_the_special_tokens() -> None:
    """The tokens in marks are named, other special tokens are not."""
    kept = choose("", (), tools="openai").kept(["<|channel|>", "<|call|>", "<|other|>", ""])
    assert kept == {"<|channel|>", "<|call|>"}


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """The error lists the names that exist."""
    with pytest.raises(FormatError, match=rf"'unknown'.*{', '.join(tool_names()[:2])}"):
        choose("", (), tools="unknown")
    with pytest.raises(FormatError, match=rf"'unknown'.*{', '.join(reasoning_names()[:2])}"):
        choose("", (), reasoning="unknown")


def test_a_plugin_describes_formats_as_data(tmp_path: Path) -> None:
    """A user's file gives formats that are used by name, as those of the package."""
    path = tmp_path / "plugin.toml"
    path.write_text(PLUGIN)
    formats = choose("", (), tools="house_style", reasoning="house_style", plugin=path)
    parser = make_parser(formats, TOOLS)
    found = message_of(parser.feed('<<hm>>a<</hm>>b<<call>>{"fn": "now"}<</call>>', True))
    assert (found.reasoning, found.text, found.calls[0].name) == ("a", "b", "now")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[", "not TOML"),
        ("[other.x]", r"\[other\]"),
        ("[tools.x]\nforms = []", r"\[tools.x\].*at least one form"),
        ("[tools.x]\nforms = [{body = {kind = 'json'}}]", "begins with a mark"),
        ("[tools.x]\nforms = [{call = ['a'], body = {kind = 'xml'}}]", "xml"),
        ("[tools.x]\nforms = [{call = ['a'], body = {kind = 'json'}}]\nspeed = 1", "speed"),
        ("[tools.x]\nforms = [{call = ['a'], body = {kind = 'keyed', quote = ''}}]", "quote"),
        ("[tools.x]\nforms = [{call = ['a'], body = {kind = 'named', skips = true}}]", "skips"),
        ("[tools]\nx = 1", r"\[tools.x\]"),
        ("tools = 1", r"tools"),
        ("[reasoning.x]\nopen = ['a']\nclose = [' ']", "close"),
        ("[tools.x]\nsame_as = 'y'", "no format 'y'"),
        ("[tools.x]\nsame_as = []", "no format"),
        ("# " + "x" * (1 << 20), "1048576 bytes"),
    ],
)
def test_a_wrong_plugin_is_refused_with_its_place(tmp_path: Path, content: str, words: str) -> None:
    """The error names the file and what is wrong in it."""
    path = tmp_path / "plugin.toml"
    path.write_text(content)
    with pytest.raises(FormatError, match=f"(?s)plugin.toml.*{words}"):
        load_plugin(path)


def test_a_plugin_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The error names the path and the reason."""
    with pytest.raises(FormatError, match=r"missing\.toml.*No such file"):
        load_plugin(tmp_path / "missing.toml")


def test_the_page_lists_every_format() -> None:
    """The tables of docs/formats.md have the names of all formats."""
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text("utf-8")
    calls, _, reasoning = page.partition("## Formats of reasoning")
    assert [name for name in tool_names() if f"`{name}`" not in calls] == []
    assert [name for name in reasoning_names() if f"`{name}`" not in reasoning] == []
