// Reports whether this processor runs the avx512bf16 tier.
// Unlike the kernels, this file is compiled for any processor.
namespace octavo {

bool avx512vnni_runs();  // isa/avx512vnni/runs.cpp
bool avx512bf16_runs();

bool avx512bf16_runs() { return avx512vnni_runs() && __builtin_cpu_supports("avx512bf16"); }

}  // namespace octavo
