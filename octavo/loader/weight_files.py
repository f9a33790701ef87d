"""The choice of a model's weights among the files of a directory or repository."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from octavo.loader.errors import CheckpointError, SourceError, UnsupportedFormatError, quote

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
INDEX_SUFFIX = ".safetensors.index.json"
# Small files beside the weights, with the configuration and the tokenizer.
SIDE_SUFFIXES = (".json", ".jinja", ".model", ".txt")

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)")
_MOST_NAMES_IN_A_MESSAGE = 12


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files of one model by relative name, parts in order, and the index if there is one."""

    names: tuple[str, ...]
    index: str | None = None

    @property
    def is_gguf(self) -> bool:
        return self.names[0].endswith(".gguf")


def choose_weights(names: Iterable[str], select: str | None = None) -> WeightFiles:
    """Choose the weights among `names`: safetensors if there are any, else GGUF.

    `select` chooses one of several GGUF files, by a file's name or its quantisation (`Q4_K_M`).
    """
    found = sorted(names)
    safetensors = [name for name in found if name.endswith(".safetensors") and "/" not in name]
    ggufs = [name for name in found if name.endswith(".gguf") and not _is_projector(name)]
    if safetensors and select is None:
        return _choose_safetensors(found, safetensors)
    if ggufs:
        return _choose_gguf(ggufs, select)
    if select is not None:
        raise SourceError(f"no GGUF file to match {quote(select)}", advice=_listing(found))
    for name in found:
        if name.endswith(PICKLE_SUFFIXES):
            raise refuse_pickle(name)
    advice = f"{_listing(found)}; name the directory that has the model's files"
    raise SourceError("no weights (*.safetensors or *.gguf)", advice=advice)


def refuse_pickle(name: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"{quote(name)} is a pickled checkpoint, and reading one can run any code",
        advice=(
            'convert it once with: python -c "from transformers import AutoModelForCausalLM as M;'
            " M.from_pretrained('MODEL').save_pretrained('DIRECTORY')\""
        ),
    )


def _choose_safetensors(found: list[str], safetensors: list[str]) -> WeightFiles:
    indexes = [name for name in found if name.endswith(INDEX_SUFFIX) and "/" not in name]
    # Some repositories hold the same weights twice, once under the maker's own names.
    if len(safetensors) > 1:
        original = [name for name in safetensors if name.startswith("consolidated")]
        safetensors = [name for name in safetensors if name not in original] or original
    if f"model{INDEX_SUFFIX}" in indexes:
        return WeightFiles(tuple(safetensors), f"model{INDEX_SUFFIX}")
    if "model.safetensors" in safetensors:
        return WeightFiles(("model.safetensors",))
    if len(indexes) == 1:
        return WeightFiles(tuple(safetensors), indexes[0])
    return WeightFiles(_one_model(safetensors))


def _choose_gguf(ggufs: list[str], select: str | None) -> WeightFiles:
    if select is not None:
        chosen = [name for name in ggufs if _matches(name, select)]
        if not chosen:
            raise SourceError(f"no GGUF file matches {quote(select)}", advice=_listing(ggufs))
        ggufs = chosen
    return WeightFiles(_one_model(ggufs))


def _matches(name: str, select: str) -> bool:
    """Return whether the file is named `select`, or has the quantisation `select`."""
    file_name = PurePosixPath(name).name
    if select in (name, file_name):
        return True
    part = _PART.fullmatch(file_name)
    stem = part["stem"] if part else file_name.removesuffix(".gguf")
    wanted = re.escape(select.casefold())
    return re.search(rf"(^|[-._]){wanted}\Z", stem.casefold()) is not None


def _one_model(names: list[str]) -> tuple[str, ...]:
    """Return `names` if they are one file, or all parts of one model."""
    if len(names) == 1 and not _PART.fullmatch(names[0]):
        return tuple(names)
    parts = [_PART.fullmatch(name) for name in names]
    models = {(part["stem"], part["count"]) if part else None for part in parts}
    if len(models) != 1 or None in models:
        raise SourceError(
            f"{len(names):,} files that could be the weights: {_shown(names)}",
            advice="name one of them",
        )
    numbers = [int(part["number"]) for part in parts if part]
    count = int(parts[0]["count"]) if parts[0] else 0
    missing = sorted(set(range(1, count + 1)) - set(numbers))
    if missing or len(numbers) != count:
        raise CheckpointError(
            f"only {len(numbers):,} of the {count:,} parts of {quote(names[0])} are here,"
            f" part {missing[0] if missing else count:,} is missing",
            advice="download the rest",
        )
    return tuple(names)


def _is_projector(name: str) -> bool:
    """Return whether the file is a vision model's image encoder, which is stored separately."""
    return PurePosixPath(name).name.startswith("mmproj")


def _listing(names: list[str]) -> str:
    return f"it holds {_shown(names)}" if names else "it holds no files"


def _shown(names: list[str]) -> str:
    rest = len(names) - _MOST_NAMES_IN_A_MESSAGE
    shown = ", ".join(quote(name) for name in names[:_MOST_NAMES_IN_A_MESSAGE])
    return f"{shown} and {rest:,} more" if rest > 0 else shown
