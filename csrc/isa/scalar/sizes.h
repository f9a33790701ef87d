// How much work the kernels take at once: what any processor's registers allow.
#pragma once

namespace octavo {
namespace OCTAVO_TIER {
namespace {

constexpr int kMaxRows = 1;
constexpr int kWidenedRows = 1;
constexpr bool kKeepsWeights = false;

constexpr int kQuantizedRows = 2;
constexpr int vectors_beside(int) { return 1; }

namespace attend {

constexpr int kLanes = 4;  // of the compiler's own vectors: what SSE2 and NEON have
constexpr bool kReadsHalves = false;
constexpr int kQueries = 2;
constexpr int kScoreVectors = 4;  // 16 positions
constexpr int vectors_for(int, bool) { return 4; }
constexpr int kLatentDims = 2;

}  // namespace attend

}  // namespace
}  // namespace OCTAVO_TIER
}  // namespace octavo
