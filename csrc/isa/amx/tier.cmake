# x86-64 processors with AMX: its tiles of bf16 pairs and of bytes, and AVX-512 for everything else.
set(tier_order 4)
# Where the system does not let a process use tiles.
set(tier_replacement avx512bf16)
set(tier_processors "x86_64|AMD64")
# The tiles' instructions are written as assembly, so the compiler needs no flag for them.
set(tier_flags -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
    -mprfchw -mprefer-vector-width=512
    # gcc 12 warns about values that its own intrinsics leave undefined
    -Wno-maybe-uninitialized -Wno-uninitialized
    -mavx512bf16)
set(tier_folders amx avx512 x86 no_bf16 avx512bf16)
