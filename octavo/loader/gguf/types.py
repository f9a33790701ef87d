"""GGUF's codes: what the numbers for tensor types and metadata types in a file mean."""

from octavo.loader import tensor_type
from octavo.loader.tensor_type import TensorType


def _blocks(name: str, block_elements: int, block_bytes: int) -> TensorType:
    return TensorType(name, block_elements, block_bytes, None)


# Blocks of 32 elements: one float16 scale (and minimum), then the quantised values.
Q4_0 = _blocks("Q4_0", 32, 2 + 16)
Q4_1 = _blocks("Q4_1", 32, 2 + 2 + 16)
Q5_0 = _blocks("Q5_0", 32, 2 + 4 + 16)
Q5_1 = _blocks("Q5_1", 32, 2 + 2 + 4 + 16)
Q8_0 = _blocks("Q8_0", 32, 2 + 32)
Q8_1 = _blocks("Q8_1", 32, 2 + 2 + 32)
IQ4_NL = _blocks("IQ4_NL", 32, 2 + 16)
MXFP4 = _blocks("MXFP4", 32, 1 + 16)
# Blocks of 64, with a scale in E4M3 for each 16.
NVFP4 = _blocks("NVFP4", 64, 4 + 32)

# Larger blocks with one scale: signs alone, and codes of two bits.
Q1_0 = _blocks("Q1_0", 128, 2 + 16)
Q2_0 = _blocks("Q2_0", 64, 2 + 16)

# Blocks of 256 elements, divided again into 8 or 16 sub-blocks with small scales of their own.
Q2_K = _blocks("Q2_K", 256, 16 + 64 + 2 + 2)
Q3_K = _blocks("Q3_K", 256, 32 + 64 + 12 + 2)
Q4_K = _blocks("Q4_K", 256, 2 + 2 + 12 + 128)
Q5_K = _blocks("Q5_K", 256, 2 + 2 + 12 + 32 + 128)
Q6_K = _blocks("Q6_K", 256, 128 + 64 + 16 + 2)
Q8_K = _blocks("Q8_K", 256, 4 + 256 + 32)
IQ4_XS = _blocks("IQ4_XS", 256, 2 + 2 + 4 + 128)

# Blocks of 256 ternary elements with one scale.
TQ1_0 = _blocks("TQ1_0", 256, 48 + 4 + 2)
TQ2_0 = _blocks("TQ2_0", 256, 64 + 2)

# Blocks of 256 elements whose codes choose points of a codebook.
IQ1_S = _blocks("IQ1_S", 256, 2 + 32 + 16)
IQ1_M = _blocks("IQ1_M", 256, 32 + 16 + 8)
IQ2_XXS = _blocks("IQ2_XXS", 256, 2 + 64)
IQ2_XS = _blocks("IQ2_XS", 256, 2 + 64 + 8)
IQ2_S = _blocks("IQ2_S", 256, 2 + 32 + 32 + 8 + 8)
IQ3_XXS = _blocks("IQ3_XXS", 256, 2 + 64 + 32)
IQ3_S = _blocks("IQ3_S", 256, 2 + 64 + 8 + 32 + 4)

TENSOR_TYPES = {
    0: tensor_type.F32,
    1: tensor_type.F16,
    2: Q4_0,
    3: Q4_1,
    6: Q5_0,
    7: Q5_1,
    8: Q8_0,
    9: Q8_1,
    10: Q2_K,
    11: Q3_K,
    12: Q4_K,
    13: Q5_K,
    14: Q6_K,
    15: Q8_K,
    16: IQ2_XXS,
    17: IQ2_XS,
    18: IQ3_XXS,
    19: IQ1_S,
    20: IQ4_NL,
    21: IQ3_S,
    22: IQ2_S,
    23: IQ4_XS,
    24: tensor_type.I8,
    25: tensor_type.I16,
    26: tensor_type.I32,
    27: tensor_type.I64,
    28: tensor_type.F64,
    29: IQ1_M,
    30: tensor_type.BF16,
    34: TQ1_0,
    35: TQ2_0,
    39: MXFP4,
    40: NVFP4,
    41: Q1_0,
    42: Q2_0,
}

# Types that once existed: files with them must be converted again.
REMOVED_TENSOR_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

# Metadata value types: the code of each scalar and its little-endian struct format.
SCALAR_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
BOOL_CODE = 7
STRING_CODE = 8
ARRAY_CODE = 9
