"""The environment in which chat templates run: no way out of it, and a bound on all it does."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

from octavo.text.chat.budget import (
    LARGEST_EXPONENT,
    LARGEST_INTEGER_BITS,
    Metering,
    TemplateLimitError,
    TemplateRefusedError,
    current_budget,
)
from octavo.text.chat.filters import (
    metered_filters,
    pay_for_method,
    pay_for_percent_format,
)


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
        self.filters = metered_filters(self.filters)
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
            pay_for_method(budget, target, method.__name__, args, kwargs)
        result = super().call(context, function, *args, **kwargs)
        budget.pay_for(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Calculate, when the result cannot be vast."""
        if operator == "**" and not abs(right) <= LARGEST_EXPONENT:
            raise TemplateLimitError(f"an exponent of {right} is more than {LARGEST_EXPONENT}")
        if operator == "%" and isinstance(left, str):
            values = right if isinstance(right, tuple) else (right,)
            pay_for_percent_format(current_budget.get(), left, values)
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


@pass_context  # so that constants, too, are only written out when the template runs
def _output(context: Context, value: Any) -> str:
    return current_budget.get().text(value)


def _refuse(message: object) -> None:
    raise TemplateRefusedError(str(message))
