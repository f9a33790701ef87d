"""What weights and the rows of products become on a CPU: the values of the two settings."""

from typing import Literal

# The number after int8 and int4 is how many inputs share a scale, if not 32.
CpuWeights = Literal[
    "auto",
    "bf16",
    "int8",
    "int8-64",
    "int8-128",
    "int8-wide",
    "int4",
    "int4-64",
    "int4-128",
    "fp8",
    "nf4",
]
# What rows become for products with weights that are codes. Floats have those of their type.
CpuActivations = Literal["auto", "bf16", "int8"]
