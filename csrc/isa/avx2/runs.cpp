// Reports whether this processor runs the avx2 tier.
// Unlike the kernels, this file is compiled for any processor.
namespace octavo {

bool avx2_runs();

bool avx2_runs() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
}

}  // namespace octavo
