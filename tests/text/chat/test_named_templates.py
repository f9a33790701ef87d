"""The chat templates that have names: what they write, for texts with spaces at their ends."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.cli.template import read_template
from octavo.core.config import ConfigError
from octavo.text.chat.named_templates import NAMED
from octavo.text.chat.template import ChatTemplate

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello\n"},
    {"role": "user", "content": "Bye"},
]
EXPECTED = {
    "chatml": "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nHello\n<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    "<|im_start|>assistant\n",
    "llama3": "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "vicuna": " Be brief. \n\nUSER: Hi\nASSISTANT: Hello\n</s>\nUSER: Bye\nASSISTANT:",
    "mistral-v7": "[SYSTEM_PROMPT]  Be brief. [/SYSTEM_PROMPT][INST] Hi[/INST] Hello\n</s>"
    "[INST] Bye[/INST]",
    "command-r": "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Bye<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_name_stands_for_its_template(name: str) -> None:
    template = ChatTemplate(read_template(name), {"bos_token": "<s>"})
    made = template.render(MESSAGES, add_generation_prompt=True)
    assert made == "<s>" + EXPECTED[name]


@pytest.mark.parametrize("name", sorted(NAMED))
def test_each_template_opens_an_answer_only_if_it_is_asked_to(name: str) -> None:
    template = ChatTemplate(read_template(name))
    opened, closed = (
        template.render(MESSAGES, add_generation_prompt=each) for each in (True, False)
    )
    assert opened.startswith(closed)
    for message in MESSAGES:
        assert message["content"].strip() in closed


def test_an_unknown_name_lists_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="one of chatml, llama3"):
        read_template("chatmk")
