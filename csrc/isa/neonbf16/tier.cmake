# 64-bit ARM processors with products of bf16 pairs, and of bytes with and without sign (ARMv8.6-A).
set(tier_order 2)
set(tier_processors "aarch64|arm64")
set(tier_flags -march=armv8.2-a+dotprod+i8mm+bf16)
set(tier_folders neonbf16 arm no_tiles)
