# x86-64 processors with AVX-512 and its products of bytes.
set(tier_order 2)
set(tier_processors "x86_64|AMD64")
set(tier_flags -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
    -mprfchw -mprefer-vector-width=512
    # gcc 12 warns about values that its own intrinsics leave undefined
    -Wno-maybe-uninitialized -Wno-uninitialized)
set(tier_folders avx512 x86 no_bf16 no_tiles)
