"""Rules about safety: data is never code, one reader of the environment, no wall clock."""

import ast
import re
from collections.abc import Iterator

from tests.tidy.source import Offence, Source

# Reading any of these formats runs whatever code its author put there.
CODE_AS_DATA_MODULES = frozenset(
    {
        "_pickle",
        "cPickle",
        "cloudpickle",
        "dill",
        "jsonpickle",
        "joblib",
        "marshal",
        "pickle",
        "shelve",
    }
)
# It reads the code of this package itself, from a file that only this user can write.
OWN_CODE = {"octavo/bytecode.py": "marshal"}
CODE_BUILTINS = frozenset({"__import__", "compile", "eval", "exec"})
# (module, function): looked for both as `module.function` and as `from module import function`.
CODE_FUNCTIONS = frozenset(
    {
        *(("builtins", name) for name in CODE_BUILTINS),
        ("torch", "load"),
        ("yaml", "full_load"),
        ("yaml", "load"),
        ("yaml", "load_all"),
        ("yaml", "unsafe_load"),
    }
)
# (module, function): clocks that jump when the system's time is set.
WALL_CLOCKS = frozenset(
    {
        ("time", "time"),
        ("time", "time_ns"),
        ("datetime", "now"),
        ("datetime", "today"),
        ("datetime", "utcnow"),
        ("date", "today"),
    }
)
# They show the time to people, and decide nothing by it.
WALL_CLOCK_READERS = frozenset(
    {
        "octavo/serving/server.py",
        "octavo/client/cache_events/publisher.py",  # for readers of what it publishes
        "octavo/observe/traces/opentelemetry.py",
        "octavo/text/chat/template.py",
        "octavo/cli/bench/serve_output.py",  # the date of a measurement
    }
)
# In the text of a pattern: an end of line that is not escaped, and what precedes it.
_CLASS = re.compile(r"(?<!\\)\[\^?\]?(?:\\.|[^\]\\])*\]|\\.", re.DOTALL)
_DOLLAR = re.compile(r"\$")
ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})
ENVIRONMENT_READER = "octavo/env.py"


def no_code_as_data(source: Source) -> Iterator[Offence]:
    """Refuse unpickling, evaluating and executing data, also in tests."""
    names = dict(_imported_names(source))
    for node in source.nodes:
        for name in _code_names(node, names):
            if OWN_CODE.get(str(source.path)) == name:
                continue
            message = f"{name} turns data into code; use JSON, msgspec or safetensors"
            yield Offence(source.path, getattr(node, "lineno", 1), message)


def _code_names(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """Yield the names in a node that can turn data into code."""
    match node:
        case ast.Import(names=aliases):
            yield from (a.name for a in aliases if _top(a.name) in CODE_AS_DATA_MODULES)
        case ast.ImportFrom(module=str(module), names=aliases):
            if _top(module) in CODE_AS_DATA_MODULES:
                yield module
            functions = ((module, alias.name) for alias in aliases)
            yield from (f"{m}.{f}" for m, f in functions if (m, f) in CODE_FUNCTIONS)
        case ast.Name(id=name, ctx=ast.Load()) if name in CODE_BUILTINS:
            yield name
        case ast.Attribute(value=ast.Name(id=base), attr=attribute):
            module = names.get(base, base)
            if (module, attribute) in CODE_FUNCTIONS:
                yield f"{module}.{attribute}"
        case ast.keyword(arg="allow_pickle", value=value):
            if not (isinstance(value, ast.Constant) and value.value is False):
                yield "allow_pickle"


def environment_in_one_place(source: Source) -> Iterator[Offence]:
    """Require that only octavo/env.py reads the environment."""
    if str(source.path) == ENVIRONMENT_READER:
        return
    names = dict(_imported_names(source))
    for node in source.nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=base), attr=attribute):
                found = names.get(base, base) == "os" and attribute in ENVIRONMENT
            case ast.ImportFrom(module="os", names=aliases):
                found = any(alias.name in ENVIRONMENT or alias.name == "*" for alias in aliases)
            case _:
                continue
        if found:
            message = f"read the environment in {ENVIRONMENT_READER} and pass the value on"
            yield Offence(source.path, node.lineno, message)


def no_wall_clock(source: Source) -> Iterator[Offence]:
    """Refuse the system's time in the package: a clock that is set must change no decision."""
    path = str(source.path)
    if not path.startswith("octavo/") or path in WALL_CLOCK_READERS:
        return
    names = dict(_imported_names(source))
    for node in source.nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=base), attr=function):
                found = (names.get(base, base), function) in WALL_CLOCKS
            case ast.Attribute(value=ast.Attribute(attr=base), attr=function):
                found = (base, function) in WALL_CLOCKS
            case ast.ImportFrom(module="time", names=aliases):
                found = any(("time", alias.name) in WALL_CLOCKS for alias in aliases)
            case _:
                continue
        if found:
            message = "this clock jumps when the system's time is set; use time.monotonic"
            yield Offence(source.path, node.lineno, message)


def patterns_end_at_the_end(source: Source) -> Iterator[Offence]:
    """Refuse `$` in patterns, which matches before a line break at the end too; use `\\Z`."""
    if not source.path.is_relative_to("octavo"):
        return
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[pattern, *_]):
                literals = [pattern]
            case ast.keyword(arg="pattern", value=pattern):
                literals = [pattern]
            case _:
                continue
        for each in ast.walk(literals[0]):
            if isinstance(each, ast.Constant) and isinstance(each.value, str | bytes):
                text = each.value if isinstance(each.value, str) else each.value.decode("latin-1")
                if _DOLLAR.search(_CLASS.sub("", text)):
                    message = "$ matches before a line break at the end too; write \\Z or fullmatch"
                    yield Offence(source.path, node.lineno, message)


def _imported_names(source: Source) -> Iterator[tuple[str, str]]:
    """Map local names to modules for `import module as name`, so that aliases are seen."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                module = alias.name if alias.asname else _top(alias.name)
                yield alias.asname or module, module


def _top(module: str) -> str:
    """Return the first part of a dotted name."""
    return module.partition(".")[0]
