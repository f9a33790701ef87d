# x86-64 processors with AVX-512, its products of bytes and its products of bf16 pairs.
set(tier_order 3)
set(tier_processors "x86_64|AMD64")
set(tier_flags -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
    -mprfchw -mprefer-vector-width=512
    # gcc 12 warns about values that its own intrinsics leave undefined
    -Wno-maybe-uninitialized -Wno-uninitialized
    -mavx512bf16)
set(tier_folders avx512bf16 avx512 x86 no_tiles)
