"""The messages of llguidance as errors, in words that say what is wrong and what to do."""

from __future__ import annotations

import re

from octavo.grammar.protocol import NO_TEXT, GrammarError

MAX_CHARACTERS = 400
_SMALLER = "make it smaller, or divide it among several requests"
_SIMPLER = "use shorter repetitions of fewer alternatives"
# Parts of the messages, and the words for them; {0} is the first number of the part.
_WORDS = {
    r"NoExtension|Unsatisfiable schema: schema is false": NO_TEXT,
    r"Unsatisfiable schema": f"{NO_TEXT}: its keywords contradict each other",
    r"[Cc]urrent row has (\d+) items; max is (\d+)": (
        "it is too ambiguous: one place of the text can be read in {0} ways, and at most {1} are "
        "followed; let each text be read in one way"
    ),
    r"[Tt]oo many items \(limit (\d+)": (
        "it is too ambiguous: finding the tokens that may come next takes more than {0} ways to "
        "read them; use longer terminals and fewer alternatives"
    ),
    r"too many states: (\d+) >= (\d+)": (
        f"it is too complex: its patterns have {{0}} states, of at most {{1}}; {_SIMPLER}"
    ),
    r"too many expressions": (
        f"it is too complex: its patterns take more work for a token than is allowed; {_SIMPLER}"
    ),
    r"configuration \(grammar\) too big \(limit for this grammar: (\d+)": (
        f"it is too complex: its patterns take more than {{0}} units of work; {_SIMPLER}"
    ),
    r"symbols\) too big \(limit for this grammar: (\d+)": (
        f"it is too large: it has more than {{0}} symbols; {_SMALLER}"
    ),
    r"Unable to determine if regex is empty": (
        f"it is too complex: its patterns and lengths cannot be held together; {_SIMPLER}"
    ),
    r"patternProperty regexes (/.*/) and (/.*/) are not disjoint": (
        "a name can match both {0} and {1}: let the patterns exclude each other"
    ),
    r"'multipleOf' has too many digits: ([-+.\de]+)": "multipleOf has too many digits: {0}",
    r"fuel|TooComplex": f"it is too complex; {_SMALLER}",
    r"[Tt]oken range end too large: (\d+)": "the model has no token with the id {0}",
    r"too large": f"it is too large; {_SMALLER}",
    r"min/maxProperties only": ("minProperties and maxProperties must stand beside the properties"),
    r"panic": "the grammar engine fails on it; name tokens by their ids, or simplify it",
}
_PLACE = re.compile(r"^(?:at )?(\d+)\(\d+\): ")
_OF_SCHEMA = "failed to compile JSON schema: "
_HEADER_LINES = 1  # before the grammar: its options


def error_for(message: str) -> GrammarError:
    """Return the error for one of llguidance's messages.

    The grammar, which a message may quote behind its first line, is left out.
    """
    first = message.strip().partition("\n")[0]
    place = _PLACE.match(first)
    line = None if place is None else int(place[1]) - _HEADER_LINES
    for part, words in _WORDS.items():
        if found := re.search(part, first):
            return GrammarError(words.format(*found.groups()), line)
    return GrammarError(_PLACE.sub("", first).removeprefix(_OF_SCHEMA)[:MAX_CHARACTERS], line)
