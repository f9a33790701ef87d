"""Source files and offences, the input and output of the rules."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
GENERATED = "*_pb2.py"  # by the build
TREES = ("octavo", "tests", "benchmarks", "csrc")
PYTHON = (".py", ".pyi")
NATIVE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")


@dataclass(frozen=True)
class Source:
    """One file: its path from the root of the repository, and its text."""

    path: PurePosixPath
    text: str

    @property
    def is_python(self) -> bool:
        """True if `ast` can parse the file."""
        return self.path.suffix in PYTHON

    @property
    def in_core(self) -> bool:
        """True if the stricter rules of the core apply."""
        return self.path.is_relative_to("octavo/core")

    @cached_property
    def lines(self) -> list[str]:
        """The text as lines, counted as an editor does."""
        return self.text.split("\n")[: -1 if self.text.endswith("\n") else None]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes of the syntax tree, the module first; empty if the file is not Python."""
        return list(ast.walk(ast.parse(self.text))) if self.is_python else []


@dataclass(frozen=True)
class Offence:
    """One broken rule at one place, with a message that says what to do."""

    path: PurePosixPath
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


Rule = Callable[[Source], Iterator[Offence]]


def sources(root: Path = ROOT) -> list[Source]:
    """Return every file under `root` that the rules cover, in a fixed order."""
    paths = (path for tree in TREES for path in (root / tree).rglob("*"))
    return [
        Source(PurePosixPath(path.relative_to(root).as_posix()), path.read_text("utf-8"))
        for path in sorted(paths)
        if path.suffix in PYTHON + NATIVE and path.is_file() and not path.match(GENERATED)
    ]
