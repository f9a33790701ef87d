"""Recognition of an extension module that was built from other sources than those beside it.

Such a module would read the tuples of a step, or the arguments of an instruction, at wrong places:
numbers are wrong then, or the process ends. An installed package has its module from its own
sources; only in a checkout can a module be older, and there both sides have a digest of them.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What Python calls, and what reads the numbers that it writes. CMakeLists.txt has the same list.
_AGREED = ("csrc/bind", "csrc/program", "csrc/step")


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
    paths = (path for folder in _AGREED for path in (root / folder).iterdir())
    digests = {
        path.relative_to(root).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.suffix in (".cpp", ".h") and not path.name.startswith(".")
    }
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return sha256(lines.encode()).hexdigest()
