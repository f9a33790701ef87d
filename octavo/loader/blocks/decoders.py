"""The layouts of quantised blocks and their decoders, by the types' names."""

from __future__ import annotations

from collections.abc import Callable

from octavo.loader.blocks import small_blocks, super_blocks
from octavo.loader.blocks.small_blocks import Blocks, Floats
from octavo.loader.codebooks import blocks as codebook_blocks

LAYOUTS = small_blocks.LAYOUTS | super_blocks.LAYOUTS | codebook_blocks.LAYOUTS

DECODERS: dict[str, Callable[[Blocks, Floats], None]] = {
    "Q4_0": small_blocks.decode_q4_0,
    "Q4_1": small_blocks.decode_q4_1,
    "Q5_0": small_blocks.decode_q5_0,
    "Q5_1": small_blocks.decode_q5_1,
    "Q8_0": small_blocks.decode_q8,
    "Q8_1": small_blocks.decode_q8,
    "IQ4_NL": small_blocks.decode_iq4_nl,
    "MXFP4": small_blocks.decode_mxfp4,
    "NVFP4": small_blocks.decode_nvfp4,
    "Q1_0": small_blocks.decode_q1_0,
    "Q2_0": small_blocks.decode_q2_0,
    "Q2_K": super_blocks.decode_q2_k,
    "Q3_K": super_blocks.decode_q3_k,
    "Q4_K": super_blocks.decode_q4_k,
    "Q5_K": super_blocks.decode_q5_k,
    "Q6_K": super_blocks.decode_q6_k,
    "Q8_K": super_blocks.decode_q8_k,
    "IQ4_XS": super_blocks.decode_iq4_xs,
    "TQ1_0": super_blocks.decode_tq1_0,
    "TQ2_0": super_blocks.decode_tq2_0,
    **codebook_blocks.DECODERS,
}
