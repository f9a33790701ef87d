"""Variables as options: OCTAVO_MAX_MODEL_LEN has the value of --max-model-len.

As with a file's keys, each becomes the words of its flag, with the checks and errors of flags.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.cli.flags.config_file import PROTECTING, words_for
from octavo.env import SETTING

_TRUTHS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
# What Kubernetes and Docker set in a container beside a service whose name begins with "octavo".
_LINK = re.compile(
    rf"{SETTING}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
    rf"|{SETTING}ENV_\w+"
)
_LINK_NAME = f"{SETTING}NAME"
_LINK_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def words_of(
    variables: Mapping[str, str], actions: Mapping[str, argparse.Action]
) -> dict[str, list[str]]:
    """Return the words of each variable's flag; raise ValueError for a value that is none."""
    found: dict[str, list[str]] = {}
    for name, text in variables.items():
        is_address = name.endswith("_PORT") and _LINK_ADDRESS.match(text)
        is_link_name = name == _LINK_NAME and text.startswith("/")
        if is_address or is_link_name or _LINK.fullmatch(name):
            continue
        flag = "--" + name.removeprefix(SETTING).lower().replace("_", "-")
        action = actions.get(flag)
        if text.strip():
            try:
                found[name] = list(words_for(flag, value_of(text, action), actions))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        elif action is not None and action.dest in PROTECTING:
            raise ValueError(
                f"{name} is empty, and the server would be open without it; give it a value, or "
                "unset it"
            )
    return found


def value_of(text: str, action: argparse.Action | None) -> Any:
    """Return a truth for a flag without a value, and a list for one that takes several."""
    if action is None:
        return text
    if action.nargs == 0:
        truth = _TRUTHS.get(text.strip().lower())
        if truth is None:
            raise ValueError(f"{text[:100]!r} must be true or false")
        return truth
    if not isinstance(action, argparse._AppendAction) and action.nargs != "+":
        return text
    try:
        values = _values(text.strip())
    except (ValueError, RecursionError):
        raise ValueError(f"{text[:100]!r} is not a JSON list") from None
    if not values:
        raise ValueError(f"{text[:100]!r} has no value; write one, or several with commas")
    return values


def _values(text: str) -> list[Any]:
    """Return the values of a JSON list, or those between commas; an object is one value."""
    if text.startswith("["):
        return list(json.loads(text))
    return [text] if text.startswith("{") else [each for each in text.split(",") if each]
