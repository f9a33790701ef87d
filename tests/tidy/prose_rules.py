"""Rules about prose: docstrings, comments and messages are plain technical English.

Run `python -m tests.tidy.prose_rules octavo/core tests/core` to see what they find in some folders.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.source import Offence, Source, sources

VERBS = frozenset((Path(__file__).parent / "verbs.txt").read_text("utf-8").split())
FEWEST_WORDS = 4

# A docstring that begins with one of these has no subject or no verb of its own.
_FRAGMENT_WORDS = """
    what who whom whose where how whether when why which whichever
    it its they them their he she we us our you your one's oneself this that these those such so
    of in on at by for from to with without within into onto upon over under out off up down
    before after behind beside between beyond through until unless as if because since while though
    and or but nor not never always only just even also too again here there then than else
    exactly everything nothing something anything anybody all both either
"""
_NO_SENTENCE = frozenset(_FRAGMENT_WORDS.split())
# Words that stand for a person, or that are a private way of saying "return", "report" or "pass".
BANNED = re.compile(
    r"\b(told|tells|whoever|whomever|nobody|somebody|everybody|anyhow|bury|buried|burial|"
    r"obituary|vigil|acquit\w*|farewell|roster)\b",
    re.IGNORECASE,
)
_IS_PROPERTY = re.compile(r"(^|\.)(cached_)?property$|\.(setter|deleter)$")


def verb_first(source: Source) -> Iterator[Offence]:
    """Require a verb first in a function's docstring; a property's may be a noun."""
    for node, text in _docstrings(source):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if _is_test(node, source) or _is_property(node):
            continue
        word = _first_word(text)
        if word.lower() not in VERBS:
            message = f"{node.name}: begin the docstring with a verb ('Return', …), not {word!r}"
            yield Offence(source.path, node.lineno, f"{message}; verbs.txt lists the verbs")


def noun_first(source: Source) -> Iterator[Offence]:
    """Refuse fragments: classes, properties and tests need a subject or a verb."""
    for node, text in _docstrings(source):
        if isinstance(node, ast.Module):
            continue
        word = _first_word(text)
        if word.lower() in _NO_SENTENCE:
            message = f"{node.name}: {word!r} begins a fragment; begin with a noun or a verb"
            yield Offence(source.path, node.lineno, message)


def enough_words(source: Source) -> Iterator[Offence]:
    """Require four words: shorter docstrings repeat the name and can be deleted."""
    for node, text in _docstrings(source):
        if not isinstance(node, ast.Module) and len(text.split()) < FEWEST_WORDS:
            message = f"{node.name}: {text.strip()!r} says too little: say more, or delete it"
            yield Offence(source.path, node.lineno, message)


def plain_words(source: Source) -> Iterator[Offence]:
    """Refuse metaphors, and words for persons where a thing is meant."""
    if source.is_python:
        found = _python_prose(source)
    else:
        found = ((n, line.partition("//")[2]) for n, line in enumerate(source.lines, start=1))
    for number, text in found:
        match = BANNED.search(text)
        if match:
            yield Offence(source.path, number, f"write plain English instead of {match[0]!r}")


def _python_prose(source: Source) -> Iterator[tuple[int, str]]:
    """Yield every comment and every string that has a space in it, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        is_prose = token.type == tokenize.STRING and " " in token.string
        if is_prose or token.type == tokenize.COMMENT:
            yield token.start[0], token.string


_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _docstrings(source: Source) -> Iterator[tuple["_Documented", str]]:
    """Yield every docstring with the node that it belongs to."""
    for node in source.nodes:
        if isinstance(node, _Documented):
            text = ast.get_docstring(node)
            if text is not None:
                yield node, text


def _first_word(text: str) -> str:
    """Return the first word of a text, without quotes and punctuation."""
    words = text.split()
    return words[0].strip(".,;:…!?") if words else ""


def _is_test(node: ast.FunctionDef | ast.AsyncFunctionDef, source: Source) -> bool:
    """Return whether pytest collects the function; its docstring states a fact."""
    return source.path.parts[0] == "tests" and node.name.startswith("test_")


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the function is read like an attribute, or is a fixture of a test."""
    names = (ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list)
    return any(_IS_PROPERTY.search(name) or name == "pytest.fixture" for name in names)


PROSE_RULES = (verb_first, noun_first, enough_words, plain_words)


def main(folders: list[str]) -> None:
    """Print the offences in the folders given, and their number."""
    offences = [
        offence
        for source in sources()
        if any(source.path.is_relative_to(folder) for folder in folders)
        for rule in PROSE_RULES
        for offence in rule(source)
    ]
    print(*offences, sep="\n")
    print(f"{len(offences)} offences")


if __name__ == "__main__":
    main(sys.argv[1:])
