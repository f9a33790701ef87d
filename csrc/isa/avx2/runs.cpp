// Whether this processor runs the avx2 tier. Compiled for any processor, unlike the kernels.
namespace octavo {

bool avx2_runs();

bool avx2_runs() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
}

}  // namespace octavo
