"""The functions of a Python file that the user names, which the model may call.

The file is the user's own program: it runs in this process, with all rights of the user.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from octavo.cli.chat.files import read_text
from octavo.core.sampling_params import RequestError

MAX_FUNCTIONS = 64
MAX_RESULT_CHARACTERS = 1 << 16
MAX_ARGUMENTS_CHARACTERS = 1 << 20
_MAX_DESCRIPTION_CHARACTERS = 1024
_MODULE = "octavo_run_tools"
_TYPES: dict[Any, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}
_ANNOTATIONS = "str, int, float, bool, list, dict, a Literal, or one of them with None"


class ToolFile:
    """The public functions of one file, and what requests say of them."""

    def __init__(self, name: str) -> None:
        read_text(name)  # within bounds, and a regular file
        module = _run(Path(name).expanduser())
        self._functions = _functions(name, module)
        self.described = [_described(name, *each) for each in self._functions.items()]
        self._schemas = {
            each["function"]["name"]: each["function"]["parameters"] for each in self.described
        }

    @property
    def names(self) -> list[str]:
        """The names of the functions."""
        return list(self._functions)

    def call(self, name: str, arguments: str) -> str:
        """Return a function's result as text, or what is wrong with the call."""
        function = self._functions.get(name)
        if function is None:
            return f"error: there is no function {name!r}; there are: {', '.join(self.names)}"
        try:
            if len(arguments) > MAX_ARGUMENTS_CHARACTERS:
                return f"error: the arguments have more than {MAX_ARGUMENTS_CHARACTERS} characters"
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return f"error: the arguments are no JSON: {error}"
        if wrong := _wrong(given, self._schemas[name]):
            return f"error: {wrong}"
        try:
            result = function(**given)
            text = result if isinstance(result, str) else json.dumps(result, default=str)
        except (
            Exception,
            SystemExit,
        ) as error:  # the model is sent the failure, and may call it otherwise
            return f"error: {type(error).__name__}: {error}"[:MAX_RESULT_CHARACTERS]
        if len(text) > MAX_RESULT_CHARACTERS:
            return f"{text[:MAX_RESULT_CHARACTERS]}\n(cut at {MAX_RESULT_CHARACTERS} characters)"
        return text


def _run(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise RequestError(f"{path} is no Python file; its name ends with .py")
    module = importlib.util.module_from_spec(spec)
    earlier = sys.modules.get(_MODULE)
    sys.modules[_MODULE] = module  # by which its own classes are found
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(_MODULE)
        if earlier is not None:
            sys.modules[_MODULE] = earlier
        raise RequestError(f"{path} fails: {type(error).__name__}: {error}") from None
    return module


def _functions(name: str, module: types.ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions that the file itself defines, without those that begin with `_`."""
    found: dict[str, Callable[..., Any]] = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == _MODULE and not key.startswith("_")
    }
    if not found:
        raise RequestError(f"{name} defines no function whose name begins without _")
    if len(found) > MAX_FUNCTIONS:
        raise RequestError(f"{name} defines {len(found)} functions; at most {MAX_FUNCTIONS}")
    for key, value in found.items():
        if inspect.iscoroutinefunction(value) or inspect.isgeneratorfunction(value):
            raise RequestError(f"{name}: {key} must return its result: no async, no yield")
    return found


def _described(name: str, key: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function in OpenAI's form: its docstring's first paragraph, and its parameters."""
    try:
        hints = get_type_hints(function)
    except Exception as error:  # an annotation is any expression
        raise RequestError(f"{name}: {key}: an annotation is wrong: {error}") from None
    properties, required = {}, []
    for each in inspect.signature(function).parameters.values():
        where = f"{name}: {key}({each.name})"
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise RequestError(f"{where}: only parameters that can be given by name are called")
        if each.name not in hints:
            raise RequestError(f"{where}: annotate it with {_ANNOTATIONS}")
        properties[each.name] = _schema(hints[each.name], where)
        if each.default is each.empty:
            required.append(each.name)
    text = (inspect.getdoc(function) or "").split("\n\n")[0]
    description = " ".join(text.split())[:_MAX_DESCRIPTION_CHARACTERS]
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    described = {"name": key, "description": description, "parameters": parameters}
    return {"type": "function", "function": described}


def _schema(hint: Any, where: str) -> dict[str, Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (list, dict) and not inner:  # List and Dict of typing
        hint = origin
    if isinstance(hint, type) and hint in _TYPES:  # an annotation may have no hash
        return {"type": _TYPES[hint]}
    if origin is Literal and all(isinstance(each, str | int) for each in inner):
        return {"enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": _schema(inner[0], where)}
    if origin is dict and inner[0] is str:
        return {"type": "object", "additionalProperties": _schema(inner[1], where)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(each, where) for each in inner]}
    if hint is type(None):
        return {"type": "null"}
    raise RequestError(f"{where}: annotate it with {_ANNOTATIONS}")


def _wrong(given: Any, schema: dict[str, Any]) -> str:
    """Return what is wrong with the arguments of a call; "" if nothing is."""
    if not isinstance(given, dict):
        return "the arguments must be a JSON object"
    properties = schema["properties"]
    for name in schema["required"]:
        if name not in given:
            return f"the argument {name!r} is missing"
    for name, value in given.items():
        if name not in properties:
            return f"there is no argument {name!r}; there are: {', '.join(properties)}"
        if not _fits(value, properties[name]):
            return f"the argument {name!r} must fit {json.dumps(properties[name])}"
    return ""


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a value fits one of the schemas that `_schema` makes."""
    if "anyOf" in schema:
        return any(_fits(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return any(value == each and type(value) is type(each) for each in schema["enum"])
    match schema["type"]:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            items = schema.get("items")
            return isinstance(value, list) and (
                items is None or all(_fits(each, items) for each in value)
            )
    more = schema.get("additionalProperties")
    return isinstance(value, dict) and (
        more is None or all(_fits(each, more) for each in value.values())
    )
