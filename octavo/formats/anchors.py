"""A regex that is searched for, as one that the whole text matches: anchors are written out."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|/^$]|[^\\\[()|/^$]+", re.DOTALL)
_SLASH = re.compile(r"\\.|/", re.DOTALL)
_ANY = "(?s:.*)"


def whole(regex: str) -> str:
    """Return the regex of all texts in which a place matches, as it stands between slashes."""
    branches = []
    for branch in _branches([_escaped(piece) for piece in _PIECE.findall(regex)]):
        inner = _without_group(branch)
        if inner is not None:  # whose alternatives may have anchors of their own
            branches.append(whole(inner))
            continue
        head = "" if branch[:1] == ["^"] else _ANY
        tail = "" if branch[-1:] == ["$"] else _ANY
        body = "".join(branch[not head : len(branch) - (not tail)])
        branches.append(f"{head}(?:{body}){tail}")
    return f"(?:{'|'.join(branches)})"


def _escaped(piece: str) -> str:
    """Return a piece in which slashes are escaped."""
    return _SLASH.sub(lambda found: r"\/" if found[0] == "/" else found[0], piece)


def _branches(pieces: list[str]) -> Iterator[list[str]]:
    """Yield the alternatives that stand in no group."""
    depth, branch = 0, list[str]()
    for piece in pieces:
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and not depth:
            yield branch
            branch = []
        else:
            branch.append(piece)
    yield branch


def _without_group(branch: list[str]) -> str | None:
    """Return what is in the group that is all of an alternative; None if there is no such group."""
    if branch[:1] != ["("] or branch[-1] != ")":
        return None
    depth = 0
    for piece in branch[:-1]:
        depth += (piece == "(") - (piece == ")")
        if not depth:
            return None
    inner = "".join(branch[1:-1])
    if inner.startswith("?") and not inner.startswith("?:"):
        return None  # it has a name, or flags
    return inner.removeprefix("?:")
