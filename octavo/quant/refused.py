"""Methods of quantisation that are not read, each with the nearest that is.

A method's files are of use to those who have the program that made them. Others want the same model
in another form, of about the same size.
"""

from __future__ import annotations

_TWO_BITS = "use a GGUF file of type IQ2_XS, IQ3_XXS or Q2_K, or a GPTQ file of 2 or 3 bits"
_FOUR_BITS = "use a GPTQ or AWQ file of 4 bits, or a GGUF file of type Q4_K"
_FOUR_BIT_FLOATS = "use an MXFP4, GPTQ or AWQ file, or a GGUF file of type Q4_K"
_EIGHT_BIT_FLOATS = "use an FP8 file, or a GGUF file of type Q8_0"
_OWN_INTEGERS = "use the unquantised model with --quantization int8 or int4"

# A method, in small letters → what to do instead.
NEAREST: dict[str, str] = {
    # Codebooks of vectors, and rotations
    "aqlm": _TWO_BITS,
    "quip": _TWO_BITS,
    "vptq": _TWO_BITS,
    "exl2": _FOUR_BITS,
    "exl3": _FOUR_BITS,
    "higgs": _FOUR_BITS,
    # Integers in layouts of their own
    "bitblas": _FOUR_BITS,
    "gemma": _FOUR_BITS,
    "marlin": _FOUR_BITS,
    "metal": _FOUR_BITS,
    "qqq": _FOUR_BITS,
    "sinq": _FOUR_BITS,
    "spqr": _FOUR_BITS,
    "bitnet": "use the model's bf16 files, or a GGUF file of type TQ1_0 or TQ2_0",
    # Integers that are made of floats without data, which is done at load here
    "eetq": _OWN_INTEGERS,
    "experts_int8": _OWN_INTEGERS,
    "quanto": _OWN_INTEGERS,
    # Floats
    "fouroversix": _FOUR_BIT_FLOATS,
    "fp_quant": _FOUR_BIT_FLOATS,
    "nvfp4": _FOUR_BIT_FLOATS,
    "mxfp8": _EIGHT_BIT_FLOATS,
    "quark": _EIGHT_BIT_FLOATS,
    "gguf": "give the name of the .gguf file itself, as in ORG/NAME:FILE.gguf",
}
