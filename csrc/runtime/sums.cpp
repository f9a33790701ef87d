// The exchange of sums between ranks that have some inputs of a matrix each.
#include "runtime/sums.h"

#include <stdexcept>
#include <utility>

#include "runtime/platform.h"

namespace octavo {

namespace {

constexpr size_t kLine = 64;

size_t barrier_bytes(int ranks) { return (Barrier::bytes_for(ranks) + kLine - 1) / kLine * kLine; }

}  // namespace

Sums::Sums(std::shared_ptr<Ranks> ranks)
    : ranks_(std::move(ranks)), turns_(ranks_->threads()), process_(process_id()) {}

SharedSums::SharedSums(std::shared_ptr<Ranks> given)
    : Sums(std::move(given)),
      barriers_memory_(ranks_->same(barrier_bytes(ranks_->ranks()) * ranks_->threads(), false)),
      parts_(ranks_->same(sizeof(float) * kFloats * 2 * ranks_->ranks() * ranks_->threads(),
                          true)) {
  for (int thread = 0; thread < ranks_->threads(); ++thread)
    barriers_.push_back(std::make_shared<Barrier>(
        ranks_->ranks(), barriers_memory_.data() + thread * barrier_bytes(ranks_->ranks())));
  ranks_->call_at_end([barriers = barriers_] {
    for (const std::shared_ptr<Barrier>& each : barriers) each->abandon();
  });
}

void Sums::check_process() const {
  if (process_id() != process_)
    throw std::runtime_error("the native engine's ranks do not exist in a process that was forked "
                             "from the one that loaded it: load it in the process that uses it");
}

void SharedSums::meet(int thread, size_t own, size_t) {
  if (own == 0) return;
  try {
    barriers_[thread]->wait(ranks_->rank());
  } catch (const Barrier::Abandoned&) {
    ranks_->raise();
  }
  ++turns_[thread].count;
}

}  // namespace octavo
