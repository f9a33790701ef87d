"""The plan of a GGUF file: the type of each tensor, and the header, from a file of floats."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence

from msgspec import Struct

from octavo.core.config import ConfigError
from octavo.loader import Checkpoint, ModelFiles
from octavo.loader.checkpoint import TensorInfo
from octavo.loader.errors import UnsupportedFormatError
from octavo.loader.gguf.reader import DEFAULT_ALIGNMENT, MAGIC, metadata_bytes
from octavo.loader.gguf.types import TENSOR_TYPES
from octavo.loader.tensor_type import TensorType
from octavo.quantize.gguf.blocks import BLOCK_TYPES, NEAREST_SMALL, BlockType

_CODES = {kind.name: code for code, kind in TENSOR_TYPES.items()}
_VERSION = 3
_U32 = 4  # the code of a value's type
_ALIGNMENT = "general.alignment"
# Parts of the names of tensors that stay as they are: small, and errors in them change most.
_KEPT = (
    *("_norm", "ffn_gate_inp", "position_embd", "token_types", "attn_rel_b", "shortconv.conv"),
    *("ssm_conv1d", "ssm_a", "ssm_d", "ssm_dt"),
)
_LAYER = re.compile(r"blk\.([0-9]+)\.")
# The matrices in which errors change most, those of experts included.
_MORE = ("attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight")
_HEAD, _EMBEDDING = "output.weight", "token_embd.weight"
_HEAD_TYPE = _MORE_TYPE = "q6_k"  # of the head at least: it is quantised to no fewer bits


class Recipe(Struct, frozen=True):
    """A name of `--to`: the type of most matrices, and whether some layers get a larger one."""

    type: str
    file_type: int  # llama.cpp's number for such files
    is_mixed: bool = False

    def type_of(self, name: str, layers: int) -> str:
        """Return the type of a matrix by its name, in a model with so many layers."""
        layer = _LAYER.match(name)
        if layer is None or not (self.is_mixed and name.endswith(_MORE)):
            return self.type
        return _MORE_TYPE if _has_more(int(layer[1]), layers) else self.type


def _has_more(layer: int, layers: int) -> bool:
    """Return whether a mixture spends more bits on a layer: as llama.cpp's have it."""
    edge = layers // 8
    return layer < edge or layer >= 7 * layers // 8 or (layer - edge) % 3 == 2


RECIPES = {
    "q4_0": Recipe("q4_0", 2),
    "q4_1": Recipe("q4_1", 3),
    "q5_0": Recipe("q5_0", 8),
    "q5_1": Recipe("q5_1", 9),
    "q8_0": Recipe("q8_0", 7),
    "q4_k": Recipe("q4_k", 14),
    "q4_k_m": Recipe("q4_k", 15, True),
    "q5_k": Recipe("q5_k", 16),
    "q5_k_m": Recipe("q5_k", 17, True),
    "q6_k": Recipe("q6_k", 18),
}


class GgufTensor(Struct, frozen=True):
    """A tensor of the result; `made` is None for one that stays as it was."""

    info: TensorInfo
    made: BlockType | None
    offset: int  # in the file

    @property
    def type(self) -> TensorType:
        return self.info.type if self.made is None else self.made.type

    @property
    def num_bytes(self) -> int:
        return self.type.num_bytes(self.info.shape)

    @property
    def end(self) -> int:
        return self.offset + self.num_bytes


class GgufPlan(Struct, frozen=True):
    """The decisions that are made before the first weight is read."""

    source: ModelFiles
    checkpoint: Checkpoint
    name: str  # of the type
    header: bytes  # up to the first tensor
    tensors: tuple[GgufTensor, ...]
    num_bytes: int  # of the file, which ends at a multiple of its alignment

    @property
    def num_made(self) -> int:
        return sum(each.made is not None for each in self.tensors)


def plan_gguf(source: ModelFiles, name: str) -> GgufPlan:
    """Plan the quantisation of a GGUF file; refuse one that is no model of floats."""
    if not source.is_gguf:
        raise UnsupportedFormatError(
            f"{name} is a type of GGUF files, and this is a directory of safetensors",
            path=source.directory,
            advice="make a GGUF file of floats of it with llama.cpp's convert_hf_to_gguf.py, and "
            "name that; or choose another type, such as w4a16 or w8a8",
        )
    checkpoint = source.open()
    infos, recipe = list(checkpoint.tensors.values()), RECIPES[name]
    numbers = [int(found[1]) for info in infos if (found := _LAYER.match(info.name))]
    layers = max(numbers, default=-1) + 1
    made = [
        _made(info, recipe.type_of(info.name, layers), has_head=_HEAD in checkpoint)
        for info in infos
    ]
    if not any(made):
        raise UnsupportedFormatError(
            "has no matrices that can be quantised",
            path=checkpoint.path,
            advice="name the GGUF file of a model in F16, BF16 or F32",
        )
    pairs = _metadata(source, recipe)
    alignment = checkpoint.metadata.integer(_ALIGNMENT, DEFAULT_ALIGNMENT)
    tensors = [GgufTensor(info, kind, 0) for info, kind in zip(infos, made, strict=True)]
    header_bytes = len(_header(pairs, tensors, 0, alignment))
    placed, end = [], header_bytes
    for tensor in tensors:
        placed.append(GgufTensor(tensor.info, tensor.made, end))
        end = _aligned(placed[-1].end, alignment)
    header = _header(pairs, placed, header_bytes, alignment)
    return GgufPlan(source, checkpoint, name, header, tuple(placed), end)


def _made(info: TensorInfo, name: str, *, has_head: bool) -> BlockType | None:
    """Return the type that a tensor gets; None if it stays as it is."""
    is_matrix = len(info.shape) >= 2 and info.name.endswith(".weight")
    if not is_matrix or any(part in info.name for part in _KEPT):
        return None
    if info.type.is_quantized:
        raise UnsupportedFormatError(
            f"is quantised already, to {info.type.name}, and would lose twice",
            path=info.path,
            tensor=info.name,
            advice="name a file of the same model in F16, BF16 or F32",
        )
    if info.name == _HEAD or (info.name == _EMBEDDING and not has_head):
        name = max(name, _HEAD_TYPE, key=lambda each: _bits_of(BLOCK_TYPES[each].type))
    if info.shape[-1] % BLOCK_TYPES[name].type.block_elements:
        name = NEAREST_SMALL.get(name, name)
    kind = BLOCK_TYPES[name]
    return None if info.shape[-1] % kind.type.block_elements else kind


def _bits_of(kind: TensorType) -> float:
    return 8 * kind.block_bytes / kind.block_elements


def _metadata(source: ModelFiles, recipe: Recipe) -> list[bytes]:
    """Return the pairs of the source's metadata, with what they say of the types changed."""
    pairs = {
        key: pair
        for key, pair in metadata_bytes(source.weights[0]).items()
        if not key.startswith("split.")
    }
    pairs["general.file_type"] = _number("general.file_type", recipe.file_type)
    pairs["general.quantization_version"] = _number("general.quantization_version", 2)
    return list(pairs.values())


def _number(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", _U32, value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _header(
    pairs: Sequence[bytes], tensors: Sequence[GgufTensor], start: int, alignment: int
) -> bytes:
    """Return everything before the tensors, which begin at `start`."""
    counts = struct.pack("<IQQ", _VERSION, len(tensors), len(pairs))
    entries = b"".join(_entries(tensors, start))
    data = MAGIC + counts + b"".join(pairs) + entries
    return data + bytes(_aligned(len(data), alignment) - len(data))


def _entries(tensors: Sequence[GgufTensor], start: int) -> Iterator[bytes]:
    for tensor in tensors:
        shape = tensor.info.shape[::-1]
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        place = struct.pack("<IQ", _CODES[tensor.type.name], max(tensor.offset - start, 0))
        yield _text(tensor.info.name) + sizes + place


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def check_block_type(name: str) -> str | None:
    """Return the name of a type of GGUF that is written; None if it is none of GGUF's."""
    folded = name.lower()
    if folded in RECIPES:
        return folded
    is_gguf = folded.startswith(("q", "iq", "tq")) or folded in ("f16", "bf16", "f32")
    if not is_gguf:
        return None
    known = ", ".join(RECIPES)
    raise ConfigError(f"--to {name}: the types of GGUF that are written are: {known}")
