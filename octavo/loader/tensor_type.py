"""Storage types of tensors: plain numbers, or blocks of quantised ones."""

import math

from msgspec import Struct

# The limits of what numpy can address; anything beyond is a damaged or hostile file.
MAX_DIMENSIONS = 32
MAX_TENSOR_BYTES = 1 << 62


class TensorType(Struct, frozen=True):
    """A storage type: `block_elements` consecutive elements of a row share `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int
    dtype_name: str | None  # the numpy or ml_dtypes name; None where elements are packed in blocks

    @property
    def is_quantized(self) -> bool:
        return self.dtype_name is None

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a reader's array, where rows of a quantised type are bytes."""
        if not self.is_quantized:
            return shape
        return (*shape[:-1], shape[-1] // self.block_elements * self.block_bytes)

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the size of a tensor of this shape; raise ValueError if it is impossible."""
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"{len(shape):,} dimensions, at most {MAX_DIMENSIONS} are possible")
        if any(size < 0 or size >= MAX_TENSOR_BYTES for size in shape):
            raise ValueError(f"impossible shape {_show(shape)}")
        row_elements = shape[-1] if shape else 1
        if row_elements % self.block_elements:
            raise ValueError(
                f"shape {_show(shape)}: rows of {row_elements:,} elements do not divide into"
                f" {self.name} blocks of {self.block_elements}"
            )
        # Zeros are skipped because numpy computes strides from the other sizes even then.
        if math.prod(max(size, 1) for size in shape) * self.block_bytes > MAX_TENSOR_BYTES:
            raise ValueError(f"shape {_show(shape)} has more elements than memory can address")
        return math.prod(shape) // self.block_elements * self.block_bytes


def _show(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(str(size) if size < MAX_TENSOR_BYTES else "huge" for size in shape) + "]"


def plain(name: str, num_bytes: int, dtype_name: str) -> TensorType:
    return TensorType(name, 1, num_bytes, dtype_name)


F64 = plain("F64", 8, "float64")
F32 = plain("F32", 4, "float32")
F16 = plain("F16", 2, "float16")
BF16 = plain("BF16", 2, "bfloat16")
F8_E4M3 = plain("F8_E4M3", 1, "float8_e4m3fn")
F8_E5M2 = plain("F8_E5M2", 1, "float8_e5m2")
F8_E8M0 = plain("F8_E8M0", 1, "float8_e8m0fnu")
F8_E4M3FNUZ = plain("F8_E4M3FNUZ", 1, "float8_e4m3fnuz")
F8_E5M2FNUZ = plain("F8_E5M2FNUZ", 1, "float8_e5m2fnuz")
I64 = plain("I64", 8, "int64")
I32 = plain("I32", 4, "int32")
I16 = plain("I16", 2, "int16")
I8 = plain("I8", 1, "int8")
U64 = plain("U64", 8, "uint64")
U32 = plain("U32", 4, "uint32")
U16 = plain("U16", 2, "uint16")
U8 = plain("U8", 1, "uint8")
BOOL = plain("BOOL", 1, "bool")
