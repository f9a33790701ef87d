# x86-64 processors with AVX2, FMA, F16C and BMI2.
set(tier_order 1)
set(tier_processors "x86_64|AMD64")
set(tier_flags -mavx2 -mfma -mf16c -mbmi2)
set(tier_folders avx2 x86 no_bf16 no_tiles)
