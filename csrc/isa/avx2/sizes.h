// How much work the kernels take at once: what 16 registers of AVX2 allow.
#pragma once

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// gemm_float.inl: 12 accumulators for 3 rows, the inputs and one vector of weights.
constexpr int kMaxRows = 3;
// Three rows' sums and inputs would take all registers and leave none for widening bf16 weights.
constexpr int kWidenedRows = 2;
constexpr bool kKeepsWeights = false;

// gemm_quantized.inl: two sums for each row and vector (of floats, of integers), weights, scales.
constexpr int kQuantizedRows = 3;
constexpr int vectors_beside(int rows) { return rows == 1 ? 4 : 2; }

namespace attend {

constexpr int kLanes = 8;
constexpr bool kReadsHalves = false;
constexpr int kQueries = 4;
constexpr int kScoreVectors = 2;  // 16 positions
constexpr int vectors_for(int queries, bool) { return queries <= 2 ? 4 : 2; }
constexpr int kLatentDims = 4;  // 8 sums, 4 vectors of weights and a factor

}  // namespace attend

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
