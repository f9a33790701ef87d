# The amx tier on processors without AMX, for tests: the tiles are arrays (tiles.h).
set(tier_order 5)
set(tier_is_for_tests ON)
set(tier_processors "x86_64|AMD64")
set(tier_flags -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
    -mprfchw -mprefer-vector-width=512 -Wno-maybe-uninitialized -Wno-uninitialized -mavx512bf16)
set(tier_folders amx_emulated amx avx512 x86 no_bf16 avx512bf16)
