// Reports whether this processor runs the avx512vnni tier.
// Unlike the kernels, this file is compiled for any processor.
namespace octavo {

bool avx2_runs();  // isa/avx2/runs.cpp
bool avx512vnni_runs();

bool avx512vnni_runs() {
  return avx2_runs() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace octavo
