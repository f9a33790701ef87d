"""Finds models of the Hugging Face hub: in its cache on disk, else through `huggingface_hub`.

What the cache holds is used without asking the hub, so that a start needs no network and gives
today what it gave yesterday; `@REVISION` names another state of the model.
"""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from octavo import env
from octavo.loader.errors import CheckpointError, DownloadError, quote
from octavo.loader.weight_files import SIDE_SUFFIXES, choose_weights

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ID = re.compile(
    rf"(?P<repository>{_WORD}/{_WORD})(@(?P<revision>{_WORD}(/{_WORD})*))?(:(?P<select>[^/:]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_REFERENCE_BYTES = 1024
_ANSWER_SECONDS = 10.0  # the hub's first answer; without one there is no use in trying on


@dataclass(frozen=True, slots=True)
class HubName:
    """ORG/NAME, at a revision; `select` says which of several GGUF files."""

    repository: str
    revision: str
    select: str | None


def parse(name: str) -> HubName | None:
    """`ORG/NAME[@REVISION][:FILE]` taken apart; None if the name is not of that form."""
    match = _ID.fullmatch(name)
    if match is None or ".." in name:
        return None
    return HubName(match["repository"], match["revision"] or "main", match["select"])


def cached_snapshot(name: HubName) -> Path | None:
    """The directory of the model's files in the hub's cache, complete or not."""
    root = directory_of(name.repository)
    commit = name.revision
    if not _COMMIT.fullmatch(commit):
        try:
            with (root / "refs" / commit).open("rb") as file:
                commit = file.read(_MOST_REFERENCE_BYTES).decode("ascii", "replace").strip()
        except OSError:
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    snapshot = root / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def cached_names() -> list[str]:
    """The models in the hub's cache, for suggestions."""
    try:
        directories = [path.name for path in env.hub_cache_directory().iterdir()]
    except OSError:
        return []
    return sorted(
        name.removeprefix("models--").replace("--", "/", 1)
        for name in directories
        if name.startswith("models--")
    )


def download(name: HubName) -> Path:
    """Fetch the weights and what belongs to them into the hub's cache; the snapshot's directory."""
    hub = _library(name)
    try:
        # One question without retries: where there is no network, that is said at once.
        about = hub.HfApi().model_info(
            name.repository, revision=name.revision, timeout=_ANSWER_SECONDS
        )
        present = [file.rfilename for file in about.siblings or ()]
    # The library's errors have no common base below Exception; each says what is wrong.
    except Exception as error:
        raise _failed(name, error) from error
    try:
        wanted = wanted_files(present, name.select)
    except CheckpointError as error:
        raise type(error)(f"{name.repository}: {error.problem}", advice=error.advice) from None
    try:
        snapshot = hub.snapshot_download(
            name.repository,
            revision=name.revision,
            allow_patterns=wanted,
            cache_dir=env.hub_cache_directory(),
        )
    except Exception as error:
        raise _failed(name, error) from error
    return Path(snapshot)


def wanted_files(present: list[str], select: str | None) -> list[str]:
    """Which of a repository's files to fetch: one form of the weights and the small files."""
    weights = choose_weights(present, select)
    beside = [name for name in present if "/" not in name and name.endswith(SIDE_SUFFIXES)]
    return sorted({*weights.names, *beside})


def directory_of(repository: str) -> Path:
    """Where the hub's cache has a repository, or would have it."""
    return env.hub_cache_directory() / f"models--{repository.replace('/', '--')}"


def _library(name: HubName) -> ModuleType:
    where = (
        f"{name.repository} (revision {name.revision}) is not in {directory_of(name.repository)}"
    )
    if env.hub_offline():
        raise DownloadError(where, advice="unset HF_HUB_OFFLINE to fetch it from the hub")
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise DownloadError(
            f"{where}, and fetching it needs the package huggingface_hub",
            advice="pip install 'octavo[hub]'",
        ) from None


def _failed(name: HubName, error: Exception) -> DownloadError:
    lines = str(error).strip().splitlines()
    return DownloadError(
        f"{name.repository} is no directory here, and its revision {name.revision} could not be"
        " fetched from the hub:"
        f" {type(error).__name__}: {quote(lines[0]) if lines else 'no reason given'}",
        advice="check the name, the network, and for gated models `hf auth login`",
    )
