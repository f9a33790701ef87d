"""Models in several safetensors files, with an index or without."""

from collections.abc import Mapping
from pathlib import Path

from octavo.loader.checkpoint import Checkpoint, TensorInfo
from octavo.loader.errors import CheckpointError, CorruptFileError, quote
from octavo.loader.metadata import Metadata
from octavo.loader.safetensors import open_safetensors
from octavo.loader.strict_json import parse_object

MAX_INDEX_BYTES = 64 << 20


def open_with_index(index_path: Path) -> Checkpoint:
    """Open all files that an index (`*.safetensors.index.json`) names."""
    owners = read_index(index_path)
    shard_names = sorted(set(owners.values()))
    return _merge(index_path, [index_path.with_name(name) for name in shard_names], owners)


def open_shards(paths: list[Path]) -> Checkpoint:
    """Open one file, or several that have no index."""
    return _merge(paths[0] if len(paths) == 1 else paths[0].parent, paths, None)


def _merge(path: Path, shard_paths: list[Path], owners: Mapping[str, str] | None) -> Checkpoint:
    """Join several files; `owners`, if given, is the expected file of each tensor."""
    tensors: dict[str, TensorInfo] = {}
    metadata = Metadata.of_strings(path, {})
    for shard_path in shard_paths:
        if not shard_path.exists():
            raise CorruptFileError(
                "this shard is missing",
                path=shard_path,
                advice=f"the model has {len(shard_paths):,} files: download it again",
            )
        shard = open_safetensors(shard_path)
        metadata = metadata if len(metadata) else shard.metadata
        for name, info in shard.tensors.items():
            if name in tensors:
                raise CorruptFileError(
                    f"is also in {tensors[name].path.name}", path=shard_path, tensor=name
                )
            if owners is not None and owners.get(name) != shard_path.name:
                raise CorruptFileError(
                    f"its {info.num_bytes:,} bytes are here, but {path.name} places it"
                    f" {'in ' + quote(owners[name]) if name in owners else 'nowhere'}",
                    path=shard_path,
                    tensor=name,
                    advice="index and files are of different models",
                )
            tensors[name] = info
    for name, shard_name in (owners or {}).items():
        if name not in tensors:
            raise CorruptFileError(
                f"is not here, although {path.name} says so",
                path=path.with_name(shard_name),
                tensor=name,
                advice="the file is of another version than the index: download both again",
            )
    return Checkpoint(path, tensors, metadata)


def read_index(path: Path) -> dict[str, str]:
    """Read the index: a map from each tensor to the name of its file in the same directory."""
    try:
        size = path.stat().st_size
        if size > MAX_INDEX_BYTES:
            raise CorruptFileError(
                f"the index has {size:,} bytes, at most {MAX_INDEX_BYTES:,} are read", path=path
            )
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}", path=path) from error
    owners = parse_object(text, path, "the index").get("weight_map")
    if not isinstance(owners, dict) or not owners:
        raise CorruptFileError("the index has no weight_map", path=path, advice="download it again")
    for name, shard_name in owners.items():
        if not _is_plain_name(shard_name):
            raise CorruptFileError(
                f"the index places it in {quote(str(shard_name))}, which is not a file's name",
                path=path,
                tensor=name,
            )
    return owners


def _is_plain_name(name: object) -> bool:
    """Return whether this names a file in the same directory; an index may name no other."""
    if not isinstance(name, str) or name in ("", ".", ".."):
        return False
    return name.isprintable() and "/" not in name and "\\" not in name
