"""The environment in which chat templates run: no way out of it, and a bound on all it does."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

from octavo.frontend.template_meter import (
    LARGEST_EXPONENT,
    LARGEST_INTEGER_BITS,
    Budget,
    Metering,
    TemplateLimitError,
    TemplateRefusedError,
    check_width,
)

# A field of a format that is wider than LARGEST_WIDTH, or whose width is an argument.
WIDE_FIELD = re.compile(r"%[^%a-zA-Z]*(\d{4}|\*)|\{[^{}]*(\{|:[^{}]*\d{4})")

current_budget: ContextVar[Budget] = ContextVar("current_budget")


class TemplateDict:
    """The global `dict`, without the class behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As of the class."""
        return dict.fromkeys(*args)


class TemplateNamespace(Namespace):
    """The global `namespace`, which takes no private names."""

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
    """`{% generation %}`, which marks what the assistant said; it renders as its contents."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own name and type)

    def parse(self, parser: Parser) -> nodes.Node:
        """Read up to `{% endgeneration %}`; as a block of its own, it has its own variables."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_contents"), [], [], body).set_lineno(line)

    def _contents(self, caller: Callable[[], str]) -> str:
        return caller()


# What a template can ask of its values by name, by type; nothing of any other type.
ATTRIBUTES: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, frozenset(dir(str)) - {"translate", "maketrans"}),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    ((list, tuple), frozenset({"copy", "count", "index", "grouper", "list"})),  # of `groupby` too
    (TemplateDict, frozenset({"fromkeys"})),
    (Cycler, frozenset({"current", "next", "reset"})),
    (Macro, frozenset({"arguments", "caller", "catch_kwargs", "catch_varargs", "name"})),
    (LoopContext, frozenset(dir(LoopContext))),
)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja as the reference implementation sets it up for chat templates, with a meter on it."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            finalize=_output,
        )
        self.filters = {name: _metered(name, call) for name, call in self.filters.items()}
        self.filters["tojson"] = _to_json
        self.filters["join"] = _metered("join", _join_list(self.filters["join"]))
        del self.globals["lipsum"]
        self.globals["dict"] = TemplateDict()
        self.globals["namespace"] = TemplateNamespace
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda format: now().strftime(format)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow by name what templates use, where Jinja forbids by name what it knows of."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, Namespace | Undefined):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in ATTRIBUTES)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the template, a method of a value or a method of this class."""
        budget = current_budget.get()
        budget.step()
        method = getattr(function, "__wrapped__", function)
        target = getattr(method, "__self__", None)
        if isinstance(target, str):
            if method.__name__ == "join":  # of a list, which can be measured
                args = tuple(map(list, args))
            _pay_for_method(budget, target, method.__name__, args, kwargs)
        result = super().call(context, function, *args, **kwargs)
        budget.pay_for(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Calculate, when the result cannot be vast."""
        if operator == "**" and not abs(right) <= LARGEST_EXPONENT:
            raise TemplateLimitError(f"an exponent of {right} is more than {LARGEST_EXPONENT}")
        if operator == "%" and isinstance(left, str):
            _pay_for_format(
                current_budget.get(), left, right if isinstance(right, tuple) else (right,)
            )
        if operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, str | bytes | list | tuple) and isinstance(times, int):
                    current_budget.get().pay(len(sized) * max(times, 0))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > LARGEST_INTEGER_BITS:
            raise TemplateLimitError(f"a number has more than {LARGEST_INTEGER_BITS} bits")
        current_budget.get().pay_for(result)
        return result

    def toll(self, num_characters: int) -> None:
        """Pay for one turn of a loop that writes so much plain text."""
        current_budget.get().pay(num_characters)

    def joined(self, *values: Any) -> str:
        """What `~` gives."""
        budget = current_budget.get()
        return "".join([budget.text(value) for value in values])

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """What a slice gives."""
        return value[start:stop:step]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        Metering().visit(tree)
        return tree


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Let whatever is rendered within pay out of `budget`."""
    token = current_budget.set(budget)
    try:
        yield
    finally:
        current_budget.reset(token)


@pass_context  # so that constants, too, are only written out when the template runs
def _output(context: Context, value: Any) -> str:
    return current_budget.get().text(value)


def _refuse(message: object) -> None:
    raise TemplateRefusedError(str(message))


def _pay_for_format(budget: Budget, format: str, values: Iterable[Any]) -> None:
    """Pay as if each field held the longest of the values."""
    if match := WIDE_FIELD.search(format):
        raise TemplateLimitError(f"the format has a field that is too wide: {match[0]!r}")
    values = list(values)
    budget.measure(values)
    longest = max([len(str(value)) for value in values], default=0)
    budget.pay((format.count("%") + format.count("{")) * longest)


def _pay_for_method(
    budget: Budget, text: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Pay before a method of `text` makes more of it; what it returns is paid for after."""
    values = [*args, *kwargs.values()]
    match method:
        case "center" | "ljust" | "rjust" | "zfill":
            check_width(*values)
        case "expandtabs":
            check_width(*values)
            budget.pay(text.count("\t") * max([size for size in values if size], default=8))
        case "format" | "format_map":
            _pay_for_format(budget, text, values)
        case "replace":
            _pay_for_replacement(budget, text, *values[:2])
        case "join":
            _pay_for_join(budget, text, *values)


def _pay_for_replacement(budget: Budget, text: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    budget.pay(str(text).count(str(old)) * len(str(new)))


def _pay_for_join(budget: Budget, separator: Any, items: list[Any]) -> None:
    budget.pay(len(str(separator)) * len(items))
    budget.pay(sum(len(item) for item in items if isinstance(item, str)))


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for what it makes."""

    @wraps(function)  # keeps Jinja's marks on it
    def call(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        budget.step()
        # Some filters get the environment or the like before the value.
        values = list(args[1:] if hasattr(function, "jinja_pass_arg") else args)
        options = [*values[1:], *kwargs.values()]
        match name:
            case "batch" | "center" | "slice" | "truncate" | "wordwrap" | "urlize":
                check_width(*options)
                # Some put a text of the template's own between all others.
                texts = [len(option) for option in options if isinstance(option, str)]
                budget.pay(len(str(values[0])) * max(texts, default=0))
            case "indent":
                check_width(*options)
                lines = str(values[0]).count("\n") + 1
                widths = [len(width) if isinstance(width, str) else width for width in options]
                budget.pay(lines * max([4, *widths]))
            case "format":
                _pay_for_format(budget, str(values[0]), options)
            case "replace":
                _pay_for_replacement(budget, values[0], *options)
            case "string" | "pprint" | "urlencode" | "xmlattr" | "escape" | "e" | "forceescape":
                budget.measure(values[0])
        result = function(*args, **kwargs)
        budget.pay_for(result)
        return result

    return call


def _join_list(function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `join`, over a list that can be measured before it is joined."""

    @wraps(function)
    def join(context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
        budget = current_budget.get()
        items = list(value)
        budget.measure(items)
        _pay_for_join(budget, d, items)
        return function(context, items, d, attribute)

    return join


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter of this name would escape it for HTML."""
    budget = current_budget.get()
    budget.measure(value)
    check_width(len(indent) if isinstance(indent, str) else indent)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None and separators is None:
        return encoder.encode(value)  # hardly longer than what was measured
    parts = []
    for part in encoder.iterencode(value):
        budget.pay(len(part))
        parts.append(part)
    return "".join(parts)
