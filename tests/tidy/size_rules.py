"""Rules about size and shape: short files, functions and lines, and a stated duty."""

import ast
import re
from collections.abc import Iterator

from tests.tidy.source import Offence, Source

FILE_LINES = 500
KERNEL_FILE_LINES = 800
FUNCTION_LINES = 70
COLUMNS = 100
KERNEL_DIRECTORIES = ("csrc", "triton")


def short_file(source: Source) -> Iterator[Offence]:
    """Require at most 500 lines in a file, 800 in a kernel: a longer one has two duties."""
    kernel = any(part in KERNEL_DIRECTORIES for part in source.path.parts[:-1])
    cap = KERNEL_FILE_LINES if kernel else FILE_LINES
    if len(source.lines) > cap:
        yield Offence(source.path, cap + 1, f"{len(source.lines)} lines, the cap is {cap}: split")


def short_lines(source: Source) -> Iterator[Offence]:
    """Require at most 100 columns in a line."""
    for number, line in enumerate(source.lines, start=1):
        if len(line) > COLUMNS:
            yield Offence(source.path, number, f"{len(line)} columns, the cap is {COLUMNS}")


def short_functions(source: Source) -> Iterator[Offence]:
    """Require at most 70 lines in a function, from its `def` to its end."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                message = f"{node.name} has {length} lines, the cap is {FUNCTION_LINES}"
                yield Offence(source.path, node.lineno, message)


def says_its_duty(source: Source) -> Iterator[Offence]:
    """Require a docstring whose first sentence, ended by a full stop, is the file's duty."""
    if source.is_python and first_sentence(source) is None:
        message = "open the file with a docstring: one sentence, with a full stop, saying its duty"
        yield Offence(source.path, 1, message)


def first_sentence(source: Source) -> str | None:
    """Return the first sentence of the module's docstring on one line, or None."""
    module = source.nodes[0]
    assert isinstance(module, ast.Module)
    text = " ".join((ast.get_docstring(module) or "").split())
    end = re.search(r"\.(?=\s|$)", text)
    return text[: end.end()] if end else None
