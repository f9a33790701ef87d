"""The chat templates that llama-server knows by a name, for models whose files have none."""

from __future__ import annotations

from collections.abc import Mapping

_LOOP = (
    "{{ bos_token }}{% for message in messages %}@MESSAGE@{% endfor %}"
    "{% if add_generation_prompt %}@OPENING@{% endif %}"
)


def _turns(
    before: str, between: str, after: str, *, is_trimmed: bool = False, answerer: str = "assistant"
) -> str:
    """Return a template whose turns have one form: marks around the role and the text."""
    role = f"{{{{ '{answerer}' if message.role == 'assistant' else message.role }}}}"
    content = f"{{{{ message.content{' | trim' if is_trimmed else ''} }}}}"
    message = f"{before}{role}{between}{content}{after}"
    return _whole(message, f"{before}{answerer}{between}")


def _whole(message: str, opening: str) -> str:
    """Return a template, given the part for a message and that before an answer."""
    return _LOOP.replace("@MESSAGE@", _spelt(message)).replace("@OPENING@", _spelt(opening))


def _spelt(text: str) -> str:
    r"""Write line ends as Jinja's strings, since it drops one behind a tag."""
    return text.replace("\n", "{{ '\\n' }}")


def _by_role(system: str, user: str, assistant: str, *, is_trimmed: bool = False) -> str:
    """Return the part for a message; ~ stands for its text."""
    content = f"{{{{ message.content{' | trim' if is_trimmed else ''} }}}}"
    forms = [each.replace("~", content) for each in (system, user, assistant)]
    return (
        f"{{% if message.role == 'system' %}}{forms[0]}"
        f"{{% elif message.role == 'assistant' %}}{forms[2]}{{% else %}}{forms[1]}{{% endif %}}"
    )


_CHATBOT = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
NAMED: Mapping[str, str] = {
    "chatml": _turns("<|im_start|>", "\n", "<|im_end|>\n"),
    "llama3": _turns("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", is_trimmed=True),
    "llama4": _turns("<|header_start|>", "<|header_end|>\n\n", "<|eot|>", is_trimmed=True),
    "phi3": _turns("<|", "|>\n", "<|end|>\n"),
    "phi4": _turns("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    "falcon3": _turns("<|", "|>\n", "\n"),
    "zephyr": _turns("<|", "|>\n", "<|endoftext|>\n"),
    "vicuna": _whole(_by_role("~\n\n", "USER: ~\n", "ASSISTANT: ~</s>\n"), "ASSISTANT:"),
    "vicuna-orca": _whole(_by_role("SYSTEM: ~\n", "USER: ~\n", "ASSISTANT: ~</s>\n"), "ASSISTANT:"),
    "mistral-v7": _whole(
        _by_role("[SYSTEM_PROMPT] ~[/SYSTEM_PROMPT]", "[INST] ~[/INST]", " ~</s>"), ""
    ),
    "mistral-v7-tekken": _whole(
        _by_role("[SYSTEM_PROMPT]~[/SYSTEM_PROMPT]", "[INST]~[/INST]", "~</s>"), ""
    ),
    "command-r": _whole(
        _by_role(
            "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>~<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>~<|END_OF_TURN_TOKEN|>",
            f"{_CHATBOT}~<|END_OF_TURN_TOKEN|>",
            is_trimmed=True,
        ),
        _CHATBOT,
    ),
}
