// The state that the parts of a program share: the running step and the memory that it works on.
#pragma once

#include <cstdint>
#include <memory>

#include "choice/product_kernels.h"
#include "kernels/table.h"
#include "adapters/adapters.h"
#include "program/kv_cache.h"
#include "program/scratch.h"
#include "program/step.h"
#include "runtime/team.h"

namespace octavo {

struct Context {
  Context(const KernelTable& kernels, Team& team)
      : kernels(kernels), products(kernels), team(team), scratch(team) {}

  const KernelTable& kernels;  // for everything but products
  ProductKernels products;
  Team& team;
  Step step;
  Scratch scratch;
  Adapters adapters;
  std::shared_ptr<KvCache> cache = std::make_shared<KvCache>();  // of all programs
  uint32_t epoch = 0;  // counts steps

  float* at(const Ref& ref, int row = 0) const { return scratch.at(step, ref, row); }
  uint8_t* prepared_at(const Prepared& prepared, const Worker& worker) const {
    return scratch.prepared_at(step, prepared, worker);
  }

  Epilogue epilogue_of(const Instruction& i, const Piece& piece) const {
    Epilogue e;
    e.out = at(i.out);
    e.out_stride = i.out.stride;
    e.first_output = piece.first_output;
    e.bias = piece.bias;
    e.residual = at(i.y);
    e.residual_stride = i.y.stride;
    e.scale = i.factor;
    e.cap = i.cap;
    e.activation = i.activation;
    e.gated = piece.gated;
    if (piece.adapted >= 0 && adapters.are_used())
      e.expand = adapters.expand(i.out.space, piece.adapted, at(i.low), i.low.stride);
    return e;
  }
};

}  // namespace octavo
