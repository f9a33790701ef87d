// How much work the kernels take at once: what 32 registers of NEON allow. Chosen by counting
// registers; nothing was measured on a processor.
#pragma once

namespace octavo {
namespace OCTAVO_TIER {
namespace {

// gemm_float.inl: 24 accumulators for 3 rows, the inputs and one vector of weights.
constexpr int kMaxRows = 3;
constexpr int kWidenedRows = 3;  // the same where bf16 weights are widened first
constexpr bool kKeepsWeights = false;

// gemm_quantized.inl: two sums for each row and vector (of floats, of integers), weights, scales.
constexpr int kQuantizedRows = 6;
constexpr int vectors_beside(int rows) { return rows <= 2 ? 4 : 2; }

namespace attend {

constexpr int kLanes = 4;
constexpr bool kReadsHalves = false;
constexpr int kQueries = 4;
constexpr int kScoreVectors = 4;  // 16 positions
constexpr int vectors_for(int queries, bool) { return queries <= 2 ? 8 : 4; }
constexpr int kLatentDims = 4;  // 16 sums, up to 8 vectors of weights and a factor

}  // namespace attend

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
