"""Makes objects of the operator's own classes, before the model is loaded.

They are logits processors (`--logits-processors`) and a proposer of drafts (`custom_class` of
`--speculative-config`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from octavo.core.config import ConfigError
from octavo.named_object import find_object
from octavo.options.speculation import CUSTOM_CLASS, SpeculativeConfig
from octavo.runner.request_processors import RequestProcessor
from octavo.runner.speculate.own_class import OwnClassProposer

_Wrong = Callable[[str], ConfigError]  # makes the error of what is wrong


def make_processors(names: Sequence[str]) -> dict[str, RequestProcessor]:
    """Return an object of each class, by its name; raise ConfigError that says what is wrong."""
    return {name: _make_processor(name) for name in names}


def _make_processor(name: str) -> RequestProcessor:
    def wrong(why: str) -> ConfigError:
        return ConfigError(f"logits_processors={name!r} cannot be used: {why}")

    processor: RequestProcessor = _make(
        name,
        {"validate": "validate(arguments)", "make": "make(arguments)"},
        "docs/operations.md describes the two methods, which are not those of vLLM's processors",
        wrong,
    )
    try:
        processor.validate({})
    except Exception as error:
        raise wrong(
            f"validate({{}}) failed with {type(error).__name__}: {error}; it must accept requests "
            "without arguments, such as the server's own check of its engine"
        ) from error
    return processor


def make_own_proposer(speculation: SpeculativeConfig | None) -> OwnClassProposer | None:
    """Return a proposer with an object of the class that the settings name; None if they do not.

    Raise ConfigError that says what is wrong with the class.
    """
    if speculation is None or speculation.method != CUSTOM_CLASS:
        return None
    name = speculation.model or ""

    def wrong(why: str) -> ConfigError:
        return ConfigError(f"speculative_config: the class {name!r} cannot be used: {why}")

    own = _make(
        name,
        {"propose": "propose(slot, tokens, most)", "free": "free(slot)"},
        "docs/speculation.md describes the two methods, which are not those of vLLM's proposers",
        wrong,
    )
    return OwnClassProposer(own, speculation.most_tokens)


def _make(name: str, methods: dict[str, str], described: str, wrong: _Wrong) -> Any:
    """Find a class, check that it has its methods, and call it without arguments."""
    try:
        found = find_object(name, "module:Class")
    except ValueError as error:
        raise wrong(str(error)) from error
    if not inspect.isclass(found):
        raise wrong(f"it is a {type(found).__name__}, not a class")
    for method, shown in methods.items():
        if not callable(getattr(found, method, None)):
            raise wrong(f"the class has no {shown}; {described}")
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise wrong(f"its call failed with {type(error).__name__}: {error}") from error
