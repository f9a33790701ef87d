"""Models of the Hugging Face hub: from its cache on disk, or fetched with `huggingface_hub`.

Files in the cache are used without asking the hub, so that a start needs no network and gives the
same model each time; `@REVISION` names another state of the model.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from octavo import env
from octavo.loader.errors import CheckpointError, DownloadError, SourceError, quote
from octavo.loader.model_files import ModelFiles, files_in
from octavo.loader.weight_files import PICKLE_SUFFIXES, SIDE_SUFFIXES, choose_weights

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ID = re.compile(
    rf"(?P<repository>{_WORD}/{_WORD})(@(?P<revision>{_WORD}(/{_WORD})*))?(:(?P<select>[^/:]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_REFERENCE_BYTES = 1024
_ANSWER_SECONDS = 10.0  # for the hub's first answer; without one, retries are useless


class HubName(NamedTuple):
    """A repository at a revision; `select` chooses one of several GGUF files."""

    repository: str
    revision: str
    select: str | None


class HubSource:
    """Models on the hub, with names of the form `ORG/NAME[@REVISION][:GGUF-FILE]`."""

    def owns(self, name: str) -> bool:
        parsed = parse(name)
        is_file = Path(name).suffix in (".gguf", ".safetensors", *PICKLE_SUFFIXES)
        return parsed is not None and (parsed.select is not None or not is_file)

    def find(self, name: str) -> ModelFiles | None:
        try:
            return _cached(name)
        except CheckpointError:  # only a part, or other files, were fetched
            return None

    def fetch(self, name: str) -> ModelFiles:
        hub_name = _parsed(name)
        try:
            return files_in(name, download(hub_name), select=hub_name.select, nested=True)
        except DownloadError as error:
            try:
                _cached(name)
            except CheckpointError as part:
                problem = f"{error.problem} (the cache has only a part: {part})"
                raise DownloadError(problem, advice=error.advice) from error
            raise


def _cached(name: str) -> ModelFiles | None:
    """Return the cached model, None if there is none; raise if a part of it is missing."""
    hub_name = _parsed(name)
    snapshot = cached_snapshot(hub_name)
    if snapshot is None:
        return None
    files = files_in(name, snapshot, select=hub_name.select, nested=True)
    if files.index is not None:
        from octavo.loader.safetensors_shards import read_index

        for shard_name in set(read_index(files.index).values()):
            if not files.index.with_name(shard_name).is_file():
                raise SourceError("this shard is missing", path=files.directory / shard_name)
    return files


def _parsed(name: str) -> HubName:
    parsed = parse(name)
    assert parsed is not None, "the source owns this name"
    return parsed


def parse(name: str) -> HubName | None:
    """Parse `ORG/NAME[@REVISION][:FILE]`; return None if the name is not of that form."""
    match = _ID.fullmatch(name)
    if match is None or ".." in name:
        return None
    return HubName(match["repository"], match["revision"] or "main", match["select"])


def cached_snapshot(name: HubName) -> Path | None:
    """Return the directory of the model's files in the hub's cache, complete or not."""
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
    """Return the names of the models in the hub's cache."""
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
    """Fetch the weights and the small files beside them; return their directory in the cache."""
    hub = _library(name)
    try:
        # One request without retries, so that a missing network is reported at once.
        about = hub.HfApi().model_info(
            name.repository, revision=name.revision, timeout=_ANSWER_SECONDS
        )
        present = [file.rfilename for file in about.siblings or ()]
    # The library's errors have no common base below Exception.
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
    """Choose the files to fetch: one form of the weights, and the small files."""
    weights = choose_weights(present, select)
    beside = [name for name in present if "/" not in name and name.endswith(SIDE_SUFFIXES)]
    return sorted({*weights.names, *beside})


def directory_of(repository: str) -> Path:
    """Return the place of a repository in the hub's cache, whether it is there or not."""
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
        f"{name.repository} is not a directory here, and its revision {name.revision} could not be"
        " fetched from the hub:"
        f" {type(error).__name__}: {quote(lines[0]) if lines else 'no reason given'}",
        advice="check the name, the network, and for gated models `hf auth login`",
    )
