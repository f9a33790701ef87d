# 64-bit ARM processors with dot products of bytes (ARMv8.2-A and its extension DotProd).
set(tier_order 1)
set(tier_processors "aarch64|arm64")
set(tier_flags -march=armv8.2-a+dotprod)
set(tier_folders neon arm no_bf16 no_tiles)
