"""The Jinja environment for chat templates: a template can read its variables and nothing else.

The sandbox restricts what a template may reach. It does not limit time or memory: for that, a
server renders in a process that it can kill.
"""

from __future__ import annotations

import json
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

from octavo.text.chat.messages import ChatTemplateError


class TemplateRefusedError(ChatTemplateError):
    """The template itself rejects this conversation, by calling `raise_exception`."""


class TemplateDict:
    """The global `dict`, which does not expose the class behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class TemplateNamespace(Namespace):
    """The global `namespace`, which rejects private names."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be one of the names
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the attribute {name!r} of a namespace is private; rename it")


class GenerationTag(Extension):
    """The tag `{% generation %}`, which marks the assistant's text; it renders as its contents."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own name and type)
    environment: TemplateSandbox

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse up to `{% endgeneration %}`, as a block with variables of its own."""
        self.environment.marks_answers = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_contents"), [], [], body).set_lineno(line)

    def _contents(self, caller: Callable[[], str]) -> str:
        text = caller()
        if self.environment.on_answer is not None:
            self.environment.on_answer(text)
        return text


# The attributes that a template may read, by the value's type. Other types have none.
ATTRIBUTES: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, frozenset(dir(str)) - {"translate", "maketrans"}),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    ((list, tuple), frozenset({"copy", "count", "index", "grouper", "list"})),  # for `groupby` too
    (TemplateDict, frozenset({"fromkeys"})),
    (Cycler, frozenset({"current", "next", "reset"})),
    (Macro, frozenset({"arguments", "caller", "catch_kwargs", "catch_varargs", "name"})),
    (LoopContext, frozenset(dir(LoopContext))),
)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja as the reference implementation configures it for chat templates, restricted further.

    Jinja forbids the dangerous attributes that it knows; this allows only those that templates use.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.marks_answers = False  # the template has the tag of `GenerationTag`
        # Is called with each marked text, before the text is written.
        self.on_answer: Callable[[str], None] | None = None
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            # The compiler must not evaluate constants: a compiled template, which is kept, could
            # then hold a text of a gigabyte.
            optimized=False,
            finalize=_unchanged,
        )
        self.filters["tojson"] = _to_json
        del self.globals["lipsum"]
        self.globals["dict"] = TemplateDict()
        self.globals["namespace"] = TemplateNamespace
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda format: now().strftime(format)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read this attribute; both lists must allow it."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, Namespace | Undefined):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in ATTRIBUTES)


@pass_context  # the compiler has no context, so it leaves constants to the renderer
def _unchanged(context: Context, value: Any) -> Any:
    return value


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON; Jinja's own filter of this name escapes it for HTML.

    What filters such as `map` and `select` yield is a list, and so are the views of a dictionary.
    """
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_list_of,
    )


def _list_of(value: object) -> list[Any]:
    """Return the elements of what has no form of its own in JSON; refuse what has none."""
    if isinstance(value, Iterator | KeysView | ValuesView | ItemsView | range):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _refuse(message: object) -> None:
    raise TemplateRefusedError(str(message))


def dates(now: datetime) -> dict[str, str]:
    """Return the variables in which llama-server's templates have the date."""
    return {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}
