// Packs matrices in threads of its own, while the caller loads the rest of a model.
#include "pack/pack_queue.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "runtime/platform.h"

namespace octavo {

namespace {

// The work that a thread takes at a time: long enough to be read in one run, short enough that the
// other threads do not wait long for the last piece.
constexpr size_t kReadBytes = size_t{256} << 10;
// Rows that are made need more at once: a line of the cache may have codes of 128 outputs.
constexpr int kPanelsOfMade = 8;
// Pieces between two checks for Ctrl-C: a tenth of a second, if they come from a slow disk.
constexpr int kPiecesOfHelp = 64;

struct Piece {
  int job;
  int first_panel;
  int end_panel;
};

// Multiplies the scales with which each panel begins.
void multiply_outputs(const PackJob& job, const Piece& piece) {
  const size_t bytes = panel_bytes(job.format, job.inputs);
  for (int panel = piece.first_panel; panel < piece.end_panel; ++panel) {
    auto* scales = reinterpret_cast<float*>(job.data + panel * bytes);
    const size_t first = static_cast<size_t>(panel) * kPanel;
    const size_t count = std::min<size_t>(kPanel, job.factors.size() - first);
    for (size_t i = 0; i < count; ++i) scales[i] *= job.factors[first + i];
  }
}

}  // namespace

struct PackQueue::Running {
  explicit Running(std::vector<PackJob> added) : jobs(std::move(added)), left(jobs.size()) {
    for (size_t job = 0; job < jobs.size(); ++job) {
      const int begin = jobs[job].first_panel, end = jobs[job].end_panel;
      const size_t bytes = panel_bytes(jobs[job].format, jobs[job].inputs);
      const size_t least = jobs[job].makes_rows() ? kPanelsOfMade : 1;
      const int most = static_cast<int>(std::max(least, kReadBytes / bytes));
      left[job] = end - begin;
      for (int first = begin; first < end; first += most) {
        pieces.push_back({static_cast<int>(job), first, std::min(end, first + most)});
      }
    }
  }

  ~Running() {
    next.store(pieces.size());  // the rest is not needed
    for (std::thread& thread : threads) thread.join();
  }

  void start(int count) {
    for (int i = 0; i < count; ++i) {
      try {
        threads.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        return;
      }
    }
  }

  // Packs pieces in the order of the file. Returns whether no piece is left to begin.
  bool work(int most = INT_MAX) {
    RowRoom room;
    try {
      for (; most > 0; --most) {
        const size_t at = next.fetch_add(1);
        if (at >= pieces.size()) return true;
        pack(pieces[at], room);
      }
      return false;
    } catch (...) {
      const std::lock_guard<std::mutex> mine(failure);
      if (!error) error = std::current_exception();
      return true;
    }
  }

  void pack(const Piece& piece, RowRoom& room) {
    const PackJob& job = jobs[piece.job];
    if (job.makes_rows()) {
      pack_made_rows(job.format, job.type, job.tensors, job.places, job.inputs, piece.first_panel,
                     piece.end_panel, job.data, room);
    } else {
      pack_panels(job.format, job.type, job.rows.data(), static_cast<int>(job.rows.size()),
                  job.inputs, piece.first_panel, piece.end_panel, job.data);
    }
    if (!job.factors.empty()) multiply_outputs(job, piece);
    const int mine = piece.end_panel - piece.first_panel;
    if (left[piece.job].fetch_sub(mine) > mine) return;
    for (const auto& [begin, bytes] : job.file_pages) drop_file_pages(begin, bytes);
  }

  const std::vector<PackJob> jobs;
  std::vector<std::atomic<int>> left;  // panels of each job
  std::vector<Piece> pieces;
  std::atomic<size_t> next{0};
  std::mutex failure;
  std::exception_ptr error;
  std::vector<std::thread> threads;
};

PackQueue::PackQueue() = default;
PackQueue::~PackQueue() = default;

void PackQueue::add(PackJob job) { added_.push_back(std::move(job)); }

void PackQueue::begin(int threads) {
  finish();
  if (added_.empty()) return;
  running_ = std::make_unique<Running>(std::exchange(added_, {}));
  running_->start(threads - 1);
}

bool PackQueue::help() { return !running_ || running_->work(kPiecesOfHelp); }

void PackQueue::finish() {
  if (!running_) return;
  const std::unique_ptr<Running> running = std::move(running_);
  running->work();
  for (std::thread& thread : running->threads) thread.join();
  running->threads.clear();
  if (running->error) std::rethrow_exception(running->error);
}

}  // namespace octavo
