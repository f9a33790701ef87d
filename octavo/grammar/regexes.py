"""The translation of clients' regexes into those of the grammar engine.

Clients write the dialects of ECMAScript and Python; the engine reads Rust's. Where the dialects
differ about a class of characters, the translation takes what all of them match, so that a text is
valid for each. What a text must not be, as in `(?!…)`, is what any of them matches. Texts in Rust's
syntax are written so that they can stand between slashes in Lark.
"""

from __future__ import annotations

import re

from octavo.grammar.regular.expressions import TooLargeError
from octavo.grammar.regular.languages import UnreadableError, without_assertions

MAX_LENGTH = 1 << 14  # characters of one regex

# In a class that is not negated, what all dialects match; in a negated one, what any of them does.
_INSIDE = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r" \t\n\r\f\x0B",
    "D": r"\P{Nd}",
    "W": r"\W",
    "S": r"\S",
}
_INSIDE_NEGATED = {
    "d": r"\p{Nd}",
    "w": r"\w",
    "s": r"\s\u{FEFF}",
    "D": r"\x00-\x2F:-\u{10FFFF}",
    "W": r"\x00-\x2F:-@\[-\^`\{-\u{10FFFF}",
    "S": r"!-\u{10FFFF}\x00-\x08\x0E-\x1F",
}
_OUTSIDE = {
    **{letter: f"[{inside}]" for letter, inside in _INSIDE.items() if letter in "dwsDW"},
    "S": r"[^\s\u{FEFF}]",
}
# What any dialect matches, and more: sets of thousands of letters make long regexes.
_INSIDE_WIDENED = {**_INSIDE_NEGATED, "w": r"0-9A-Za-z_\x80-\u{10FFFF}"}
_OUTSIDE_WIDENED = {letter: f"[{inside}]" for letter, inside in _INSIDE_WIDENED.items()}
_ANY = r"[^\n\r\u{2028}\u{2029}]"  # the meaning of "."
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_ANY_WIDENED = r"[^\n]"
_ASSERTION = re.compile(r"\(\?<?[=!]")
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_]\w*>|:)|\(\?([ims]+(?:-[ims]+)?|-[ims]+)[:)]|\((?!\?)")
_COUNT = re.compile(r"\{(\d+)(,(\d*))?\}")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z_=]+\}")
_SPECIAL = frozenset(r"\.+*?()|[]{}^$/#&-~ ")


class RegexError(ValueError):
    """A regex that cannot be enforced, with the reason."""


def translated(regex: str, *, is_whole: bool) -> str:
    """Return a regex in the engine's dialect; raise RegexError if it has none.

    One that `is_whole` describes the whole text, so that anchors at its ends mean nothing. Others
    are searched for, and keep their anchors.
    """
    return all_translated(regex, is_whole=is_whole, is_single=True)[0]


def all_translated(regex: str, *, is_whole: bool, is_single: bool = False) -> list[str]:
    """Return regexes in the engine's dialect that together mean the given one."""
    read = _read(regex, is_whole, widens=False)
    try:
        return without_assertions(read, is_whole=is_whole, is_single=is_single)
    except (TooLargeError, UnreadableError) as error:
        raise RegexError(f"its assertions cannot be enforced: {error}") from None


def widened(regex: str) -> str:
    """Return a regex that is found in each text in which a dialect finds the given one.

    It may contain assertions.
    """
    return _read(regex, is_whole=False, widens=True)


def _read(regex: str, is_whole: bool, *, widens: bool) -> str:
    if len(regex) > MAX_LENGTH:
        raise RegexError(f"the regex has {len(regex)} characters; at most {MAX_LENGTH} are allowed")
    return _Reader(regex, is_whole, widens).read()


def literal(text: str) -> str:
    """Return the regex that matches exactly this text."""
    return "".join(map(_character, text))


def _character(each: str) -> str:
    """Return one character as it stands in a regex, inside a class or outside."""
    if each in _SPECIAL:
        return "\\" + each if each != " " else r"\x20"
    if ord(each) < 0x20 or ord(each) == 0x7F:
        return f"\\x{ord(each):02X}"
    return each


class _Reader:
    """A regex while it is read from left to right."""

    def __init__(self, regex: str, is_whole: bool, widens: bool) -> None:
        self._regex = regex
        self._is_whole = is_whole
        self._widens = [widens]  # whether more may be matched, not less, by depth
        self._at = 0
        self._matches_lines = [False]  # whether "." matches line breaks, by depth
        self._has_anchor = [False]  # whether a "^" was read, by depth
        self._num_assertions = 0  # that are open
        self._asserts = [False]  # whether a group is one, by depth
        self._parts: list[str] = []
        self._can_repeat = False  # whether a quantifier may follow
        self._is_anchored = False  # whether what was read last is a group with a "^"

    def read(self) -> str:
        while self._at < len(self._regex):
            self._read_one()
        if self._depth:
            raise RegexError("a group is not closed: a ) is missing")
        return "".join(self._parts)

    def _read_one(self) -> None:
        regex, at = self._regex, self._at
        each = regex[at]
        if each == "\\":
            self._add(self._escape())
        elif each == "[":
            self._add(self._class())
        elif each == "(":
            self._open()
        elif each in "*+?":
            self._repeat(each, 1)
        elif each == "{" and (count := _COUNT.match(regex, at)):
            self._count(count)
        elif each in "^$":
            self._anchor(each)
        elif each == ")":
            self._close()
        else:
            self._at += 1
            if each == "|":
                self._parts.append("|")
                self._can_repeat = False
            else:
                self._add(self._any() if each == "." else _character(each))

    @property
    def _depth(self) -> int:
        """The number of groups that are open."""
        return len(self._matches_lines) - 1

    def _any(self) -> str:
        if self._matches_lines[-1]:
            return "(?s:.)"
        return _ANY_WIDENED if self._widens[-1] else _ANY

    def _add(self, part: str) -> None:
        self._parts.append(part)
        self._can_repeat = True
        self._is_anchored = False

    def _open(self) -> None:
        if found := _ASSERTION.match(self._regex, self._at):
            self._at = found.end()
            self._enter(found[0], self._matches_lines[-1])
            self._widens[-1] ^= found[0][-1] == "!"
            self._asserts[-1] = True
            self._num_assertions += 1
            return
        found = _GROUP.match(self._regex, self._at)
        if found is None:
            raise RegexError(f"{self._regex[self._at : self._at + 4]} is no known kind of group")
        self._at = found.end()
        has_flags = found[1] is not None
        matches_lines = self._matches_lines[-1]
        if has_flags:
            on, _, off = found[1].partition("-")
            matches_lines = (matches_lines or "s" in on) and "s" not in off
        if found[0][-1] == ")":  # the flags hold until the group's end
            self._matches_lines[-1] = matches_lines
            self._parts.append(found[0])
            self._can_repeat = False
        else:
            self._enter(found[0] if has_flags else "(?:", matches_lines)

    def _enter(self, opening: str, matches_lines: bool) -> None:
        """Begin a group, with this text before what it contains."""
        self._parts.append(opening)
        self._matches_lines.append(matches_lines)
        self._widens.append(self._widens[-1])
        self._asserts.append(False)
        self._has_anchor.append(False)
        self._can_repeat = False

    def _close(self) -> None:
        if not self._depth:
            raise RegexError("there is a ) without a (")
        self._matches_lines.pop()
        self._widens.pop()
        self._num_assertions -= self._asserts.pop()
        is_anchored = self._has_anchor.pop()
        self._has_anchor[-1] |= is_anchored
        self._at += 1
        self._add(")")
        self._is_anchored = is_anchored

    def _repeat(self, quantifier: str, length: int) -> None:
        if not self._can_repeat:
            raise RegexError(f"{quantifier} follows nothing that it could repeat")
        if self._is_anchored and quantifier != "?":
            raise RegexError(
                f"^ is in a group that {quantifier} repeats; write it before the group"
            )
        self._at += length
        self._parts.append(quantifier)
        self._can_repeat = False
        if self._regex.startswith("?", self._at):  # which match comes first makes no difference
            self._at += 1
        elif self._regex.startswith("+", self._at):
            raise RegexError(f"{quantifier}+ is possessive, which cannot be enforced")

    def _count(self, count: re.Match[str]) -> None:
        least, most = int(count[1][:9]), count[3]
        if most and int(most[:9]) < least:
            raise RegexError(f"{count[0]} counts backwards")
        self._repeat(count[0], len(count[0]))

    def _anchor(self, each: str) -> None:
        """Keep an anchor; drop it where the whole text is described and it stands at an end."""
        regex, at = self._regex, self._at
        self._at += 1
        self._has_anchor[-1] |= each == "^"
        if not self._is_whole or self._num_assertions:
            self._parts.append(each)
            self._can_repeat = False
            return
        if each == "^":
            before = regex[:at]
            is_at_end = not before.strip("(^?:") or (not self._depth and before[-1] == "|")
        else:
            after = regex[at + 1 :]
            is_at_end = not after.strip(")$") or (not self._depth and after[0] == "|")
        if not is_at_end:
            raise RegexError(f"{each} is not at an end of the regex, where it means nothing")

    def _escape(self) -> str:
        """Read an escape outside a class."""
        letter = self._regex[self._at + 1 : self._at + 2]
        outside = _OUTSIDE_WIDENED if self._widens[-1] else _OUTSIDE
        if letter in outside and letter:
            self._at += 2
            return outside[letter]
        if letter in ("b", "B"):
            self._at += 2
            return f"\\{letter}"
        if letter in ("k", "1", "2", "3", "4", "5", "6", "7", "8", "9"):
            raise RegexError(f"\\{letter} refers back to a group, which cannot be enforced")
        if letter in ("A", "Z", "z") and letter:
            raise RegexError(f"\\{letter} is an anchor of Python; write ^ or $")
        return self._plain_escape()

    def _plain_escape(self) -> str:
        """Read an escape that stands for one character, or for a class of Unicode."""
        regex, at = self._regex, self._at + 1
        letter = regex[at : at + 1]
        if not letter:
            raise RegexError("the regex ends with a backslash")
        if found := _PROPERTY.match(regex, at):
            self._at = found.end()
            return "\\" + found[0]
        if found := _HEX.match(regex, at):
            self._at = found.end()
            return self._code(int(found[1] or found[2] or found[3], 16))
        if letter == "c" and regex[at + 1 : at + 2].isalpha() and regex[at + 1].isascii():
            self._at += 3
            return _character(chr(ord(regex[at + 1]) % 32))
        self._at += 2
        if letter in _CONTROLS:
            return _character(chr(_CONTROLS[letter]))
        if letter.isalnum() and letter.isascii():
            raise RegexError(f"\\{letter} is no known escape")
        return _character(letter)

    def _code(self, code: int) -> str:
        """Return the character of a code point, which may come as a UTF-16 pair."""
        if 0xD800 <= code < 0xDC00:
            second = _HEX.match(self._regex, self._at + 1)
            if self._regex.startswith("\\u", self._at) and second and second[2]:
                low = int(second[2], 16)
                if 0xDC00 <= low < 0xE000:
                    self._at = second.end()
                    return _character(chr(0x10000 + ((code - 0xD800) << 10) + low - 0xDC00))
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise RegexError(f"\\u{code:04X} is no character")
        return _character(chr(code))

    def _class(self) -> str:
        """Read a class of characters in brackets."""
        regex = self._regex
        is_negated = regex.startswith("[^", self._at)
        self._at += 2 if is_negated else 1
        inside = _INSIDE
        if is_negated != self._widens[-1]:
            inside = _INSIDE_NEGATED if is_negated else _INSIDE_WIDENED
        parts: list[str] = []
        while True:
            each = regex[self._at : self._at + 1]
            if not each:
                raise RegexError("a class is not closed: a ] is missing")
            if each == "]":
                self._at += 1
                break
            letter = regex[self._at + 1 : self._at + 2]
            if each == "\\" and letter in inside and letter:
                self._at += 2
                parts.append(inside[letter])
            elif each == "\\" and letter == "b":
                self._at += 2
                parts.append(r"\x08")
            else:
                parts.append(self._range())
        if not parts and not is_negated:
            raise RegexError("[] matches nothing; write \\] for a bracket in a class")
        if not parts:
            return r"(?s:.)"
        return f"[{'^' if is_negated else ''}{''.join(parts)}]"

    def _range(self) -> str:
        """Read a character of a class, or two with a hyphen between them."""
        first = self._member()
        rest = self._regex[self._at : self._at + 2]
        if len(rest) < 2 or rest[0] != "-" or rest[1] == "]" or first.startswith(r"\p"):
            return first
        if rest[1] == "\\" and self._regex[self._at + 2 : self._at + 3] in _INSIDE:
            return first
        self._at += 1
        return f"{first}-{self._member()}"

    def _member(self) -> str:
        each = self._regex[self._at]
        if each == "\\":
            return self._plain_escape()
        self._at += 1
        return _character(each)
