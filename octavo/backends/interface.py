"""Recognition of an extension module that was built from other sources than those beside it.

Such a module would read the tuples of a step, or the arguments of an instruction, at wrong places:
numbers are wrong then, or the process ends. An installed package has its module from its own
sources; only in a checkout can a module be older, and there both sides have a digest of them.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What Python calls, what reads the numbers that it writes, the lists of names that it uses, and
# what nodes send each other: frames, and sums in parts of one size. CMakeLists.txt has the same.
_SOURCES, _LISTS = (".cpp", ".h"), (".inc",)
_AGREED = {
    "csrc/bind": _SOURCES,
    "csrc/kernels": _LISTS,
    "csrc/link": _SOURCES,
    "csrc/nodes": _SOURCES,
    "csrc/pack": _LISTS,
    "csrc/program": _SOURCES,
    "csrc/runtime": _SOURCES,
    "csrc/step": _SOURCES,
}


class OldModuleError(ImportError):
    """An extension module that these Python files cannot use."""


def check_interface(found: object, path: str, root: Path = ROOT) -> None:
    """Raise OldModuleError for a module that is older than the sources in the checkout.

    A user who may not read the sources cannot have changed them: nothing is compared then.
    """
    try:
        is_old = all((root / folder).is_dir() for folder in _AGREED) and found != interface(root)
    except PermissionError:
        return
    if is_old:
        raise OldModuleError(
            f"the extension module {path} was built from other sources than those in "
            f"{root / 'csrc'}: build it again (`make setup`)"
        )


def interface(root: Path = ROOT) -> str:
    """Return the digest of the sources that CMakeLists.txt compiles into the module.

    Hidden files are those of editors, such as Emacs's locks: links that lead nowhere.
    """
    digests = {
        path.relative_to(root).as_posix(): sha256(path.read_bytes()).hexdigest()
        for folder, suffixes in _AGREED.items()
        for path in (root / folder).iterdir()
        if path.suffix in suffixes and not path.name.startswith(".")
    }
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return sha256(lines.encode()).hexdigest()
