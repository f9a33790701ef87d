// Reports whether this processor runs the amx_emulated tier.
// Unlike the kernels, this file is compiled for any processor.
namespace octavo {

bool avx512bf16_runs();  // isa/avx512bf16/runs.cpp
bool amx_emulated_runs();

bool amx_emulated_runs() { return avx512bf16_runs(); }

}  // namespace octavo
