"""Tools in `LLM.chat`, with a template that knows none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo import LLM
from tests.api.tiny import make_model


def test_a_chat_shows_tools_and_calls_that_the_template_does_not_know(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"role": "user", "content": "x"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "3"}
    longer = {"max_position_embeddings": 1024}
    with LLM(str(make_model(tmp_path)), num_gpu_blocks_override=200, hf_overrides=longer) as llm:
        (output,) = llm.chat([asked, called, result], tools=[tool])
    prompt = output.prompt
    assert prompt is not None
    assert prompt.startswith("<s>system: These functions are available.")
    assert '{"name": "f", "parameters": {}}' in prompt
    assert '<s>assistant: <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' in prompt
    result_text = '<tool_response>\n{"name": "f", "content": "3"}\n</tool_response>'
    assert prompt.endswith(f"<s>user: {result_text}\n<s>assistant: ")
