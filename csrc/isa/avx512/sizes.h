// How much work the kernels take at once: what 32 registers of AVX-512 allow.
#pragma once

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// gemm_float.inl: 24 accumulators for 12 rows, the panel's weights and the inputs.
constexpr int kMaxRows = 12;
constexpr int kWidenedRows = 12;  // the same where bf16 weights are widened first
constexpr bool kKeepsWeights = true;  // an input's weights stay in registers while rows pass

// gemm_quantized.inl: two sums for each row and vector (of floats, of integers), weights, scales.
constexpr int kQuantizedRows = 6;
constexpr int vectors_beside(int) { return 2; }

namespace attend {

constexpr int kLanes = 16;
constexpr bool kReadsHalves = true;  // head_dim may end in half a register
constexpr int kQueries = 12;
constexpr int kScoreVectors = 2;  // 32 positions
constexpr int vectors_for(int queries, bool dots_pairs) {
  return queries <= 2 ? 8 : queries <= (dots_pairs ? 6 : 4) ? 4 : 2;
}
constexpr int kLatentDims = 16;  // 16 sums keep the products busy; 24 were 5 % slower (Zen 5)

}  // namespace attend

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
