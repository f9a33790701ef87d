"""The filters and methods that make text out of text, which pay before they make much of it."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

from octavo.text.chat.budget import (
    Budget,
    TemplateLimitError,
    check_width,
    current_budget,
)

# A field of a format that is wider than LARGEST_WIDTH, or whose width is an argument.
WIDE_PERCENT_FIELD = re.compile(r"%[^%a-zA-Z]*(\d{4}|\*)")
WIDE_BRACE_FIELD = re.compile(r"\{[^{}]*(\{|:[^{}]*\d{4})")

# Filters that first turn whatever they are given to text.
TEXT_FILTERS = frozenset(
    {
        "capitalize",
        "center",
        "e",
        "escape",
        "float",
        "forceescape",
        "format",
        "indent",
        "int",
        "lower",
        "pprint",
        "replace",
        "safe",
        "string",
        "striptags",
        "title",
        "trim",
        "truncate",
        "upper",
        "urlencode",
        "urlize",
        "wordcount",
        "wordwrap",
        "xmlattr",
    }
)


def metered_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Jinja's filters, each paying for what it makes, and `tojson` as chat templates know it."""
    metered = {name: _metered(name, function) for name, function in filters.items()}
    metered["join"] = _metered("join", _join_list(filters["join"]))
    metered["tojson"] = _to_json
    return metered


def pay_for_percent_format(budget: Budget, format: str, values: Iterable[Any]) -> None:
    """Pay for `format % values`."""
    _pay_for_fields(budget, WIDE_PERCENT_FIELD.search(format), format.count("%"), values)


def _pay_for_brace_format(budget: Budget, format: str, values: Iterable[Any]) -> None:
    fields = format.replace("{{", "").replace("}}", "")
    _pay_for_fields(budget, WIDE_BRACE_FIELD.search(fields), fields.count("{"), values)


def _pay_for_fields(
    budget: Budget, wide: re.Match[str] | None, num_fields: int, values: Iterable[Any]
) -> None:
    """Pay as if each field held the longest of the values."""
    if wide:
        raise TemplateLimitError(f"the format has a field that is too wide: {wide[0]!r}")
    values = list(values)
    budget.measure(values)
    budget.pay(num_fields * max([len(str(value)) for value in values], default=0))


def pay_for_method(
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
            _pay_for_brace_format(budget, text, values)
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
        if name in TEXT_FILTERS:
            budget.measure([values[0], *options])
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
                pay_for_percent_format(budget, str(values[0]), options)
            case "replace":
                _pay_for_replacement(budget, values[0], *options)
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
