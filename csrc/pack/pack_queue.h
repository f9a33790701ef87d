// Matrices that are packed by threads of their own, while whoever loads a model does other things.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "pack/pack.h"

namespace octavo {

struct PackJob {
  Format format;
  Stored type;
  int inputs;
  std::vector<const uint8_t*> rows;  // as pack_panels takes them
  uint8_t* data;
  // What may be let go of when all rows have been read: pages of mapped files, (begin, bytes).
  std::vector<std::pair<const uint8_t*, size_t>> file_pages;
};

class PackQueue {
 public:
  PackQueue();
  ~PackQueue();
  PackQueue(const PackQueue&) = delete;
  PackQueue& operator=(const PackQueue&) = delete;

  void add(PackJob job);

  // Starts what was added since the last time: on one thread less than `threads`, because whoever
  // calls finish() is the last of them. Where the system gives no threads, it is the only one.
  void begin(int threads);

  // Does some of what is left, some megabytes; whether finish() would begin no more.
  bool help();

  // Does what is left, and returns when everything that was begun is packed. Throws what a job
  // threw.
  void finish();

 private:
  struct Running;
  std::vector<PackJob> added_;
  std::unique_ptr<Running> running_;
};

}  // namespace octavo
