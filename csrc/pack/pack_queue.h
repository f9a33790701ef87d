// Packs matrices in threads of its own, while the caller loads the rest of a model.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "pack/group_tensors.h"
#include "pack/pack.h"

namespace octavo {

struct PackJob {
  Format format;
  Stored type;
  int inputs;
  std::vector<const uint8_t*> rows;  // as pack_panels takes them
  uint8_t* data;
  int first_panel, end_panel;  // those that are packed; `data` is where panel 0 would be
  // Pages of mapped files (begin, bytes) that are dropped when all rows have been read.
  std::vector<std::pair<const uint8_t*, size_t>> file_pages;
  // Rows that are made of tensors when they are packed have places in these, and no pointers.
  std::vector<GroupTensors> tensors;
  std::vector<RowPlace> places;
  std::vector<float> factors;  // of the outputs; none: all 1 (pack.h: has_output_scales)

  bool makes_rows() const { return !tensors.empty(); }
  size_t outputs() const { return makes_rows() ? places.size() : rows.size(); }
};

class PackQueue {
 public:
  PackQueue();
  ~PackQueue();
  PackQueue(const PackQueue&) = delete;
  PackQueue& operator=(const PackQueue&) = delete;

  void add(PackJob job);

  // Starts the jobs that were added since the last call, in one thread less than `threads`, because
  // the caller of finish() is the last of them. If the system allows no threads, it is the only
  // one.
  void begin(int threads);

  // Packs a few megabytes; returns whether finish() would find nothing left to begin.
  bool help();

  // Packs the rest, and returns when everything that was begun is packed. Rethrows the exception of
  // a job.
  void finish();

 private:
  struct Running;
  std::vector<PackJob> added_;
  std::unique_ptr<Running> running_;
};

}  // namespace octavo
