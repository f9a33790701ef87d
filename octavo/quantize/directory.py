"""The directory of a result: made or continued, never another's.

While it is unfinished it holds a record of the plan. What has another plan, or no record, is not
touched. config.json is written last, and without it no program takes the directory for a model.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from octavo.core.config import ConfigError
from octavo.loader.errors import SourceError, quote
from octavo.loader.model_files import ModelFiles
from octavo.loader.strict_json import read_object
from octavo.loader.weight_files import SIDE_SUFFIXES
from octavo.quantize.kept_factors import KeptFactors
from octavo.quantize.plan import Plan
from octavo.quantize.shards import Shard, sync_directory, write_whole

RECORD = ".octavo-quantize.json"
FACTORS = ".octavo-quantize.factors"
CONFIG = "config.json"
_VERSION = 1  # of what a plan makes; a newer one does not continue an older one's files
_TEXTS = (*SIDE_SUFFIXES, ".md")
_NAMES = ("LICENSE", "NOTICE", "USE_POLICY")
_WEIGHT_LISTS = ".index.json"
_MODULES = re.compile(r"[0-9]+_\w+")  # directories of sentence-transformers
_SPARE_BYTES = 64 << 20  # that are left free


class ResultDirectory:
    """The directory while it is written; only one process at a time may have it."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self._record = json.dumps(_description(plan), indent=1, sort_keys=True).encode()
        self.factors = KeptFactors(path / FACTORS)
        self._descriptor = -1
        self._is_new = False

    def __enter__(self) -> ResultDirectory:
        self._is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        record = self.path / RECORD
        if not record.exists():
            self._refuse_others()
            write_whole(record, self._record)
        self._descriptor = os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._lock()
            if record.read_bytes() != self._record:
                raise ConfigError(
                    f"{self.path} has an unfinished result of other settings, or of a model that "
                    "has changed since; remove it, or name another directory with -o"
                )
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def _refuse_others(self) -> None:
        if any(self.path.iterdir()):
            raise ConfigError(
                f"{self.path} is there already, with files that are not of an unfinished result; "
                "remove it, or name another directory with -o"
            )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process writes to {self.path}; wait for it, or name another directory "
                "with -o"
            ) from None

    def check_space(self, shards: list[Shard]) -> None:
        """Refuse to begin what the disk has no room for."""
        needed = sum(each.num_bytes for each in shards if not each.is_in(self.path))
        free = shutil.disk_usage(self.path).free
        if needed + _SPARE_BYTES > free:
            raise SourceError(
                f"the result needs {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free",
                path=self.path,
                advice="free some space, or name a directory on another disk with -o",
            )

    def finish(self, plan: Plan, shards: list[Shard]) -> None:
        """Write the other files, the configuration last."""
        for path, inside in side_files(plan.source):
            target = self.path / inside
            target.parent.mkdir(exist_ok=True)
            write_whole(target, path.read_bytes())
        if len(shards) > 1:
            files = {
                output.name: shard.name
                for shard, outputs in zip(shards, plan.shards, strict=True)
                for output in outputs
            }
            index = {"metadata": {"total_size": plan.num_bytes}, "weight_map": files}
            write_whole(self.path / "model.safetensors.index.json", _as_json(index))
        write_whole(self.path / CONFIG, _as_json(plan.config))
        (self.path / FACTORS).unlink(missing_ok=True)
        (self.path / RECORD).unlink()
        sync_directory(self.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None and [each.name for each in self.path.iterdir()] == [RECORD]:
            (self.path / RECORD).unlink()  # nothing has been made, so nothing is to be continued
            if self._is_new:
                self.path.rmdir()
        os.close(self._descriptor)


def is_finished(path: Path, plan: Plan) -> bool:
    """Return whether a directory holds the finished result of these settings."""
    if (path / RECORD).exists() or not (path / CONFIG).is_file():
        return False
    is_made = all(shard.is_in(path) for shard in shards_of(plan))
    return is_made and read_object(path / CONFIG) == plan.config


def shards_of(plan: Plan) -> list[Shard]:
    """Return the files of a plan; one file has no number in its name."""
    count = len(plan.shards)
    if count == 1:
        return [Shard("model.safetensors", plan.shards[0], plan.method)]
    return [
        Shard(f"model-{number:05}-of-{count:05}.safetensors", outputs, plan.method)
        for number, outputs in enumerate(plan.shards, 1)
    ]


def side_files(source: ModelFiles) -> Iterator[tuple[Path, Path]]:
    """Yield the files beside the weights, each with its path inside of the result.

    A link that leads out of the model, or out of the hub's files of its repository, is refused.
    """
    root = source.directory.resolve()
    bounds = root.parent.parent if root.parent.name == "snapshots" else root
    for path in sorted(source.directory.iterdir()):
        inside: list[Path] = []
        if path.is_dir() and _MODULES.fullmatch(path.name):
            inside = [each for each in sorted(path.iterdir()) if _is_beside(each, ".safetensors")]
        elif path.name != CONFIG and _is_beside(path):
            inside = [path]
        for each in inside:
            if not each.resolve().is_relative_to(bounds):
                raise SourceError(
                    f"{quote(each.name)} is a link that leads out of the model",
                    path=source.directory,
                    advice="replace it by the file that is meant",
                )
            yield each, each.relative_to(source.directory)


def _is_beside(path: Path, *more: str) -> bool:
    name = path.name
    if not path.is_file() or name.startswith(".") or name.endswith(_WEIGHT_LISTS):
        return False
    return name.endswith((*_TEXTS, *more)) or name.startswith(_NAMES)


def _description(plan: Plan) -> dict[str, Any]:
    """Describe a plan so that another model, or other settings, have another description."""
    files = [(path.name, path.stat()) for path in plan.source.weights]
    return {
        "version": _VERSION,
        "config": hashlib.sha256(_as_json(plan.config)).hexdigest(),
        "shards": [hashlib.sha256(shard.header).hexdigest() for shard in shards_of(plan)],
        "text": hashlib.sha256(plan.text.encode()).hexdigest(),
        "weights": [[name, status.st_size, status.st_mtime_ns] for name, status in files],
    }


def _as_json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
