// The functions with which the files of bind/ add their part to the extension module, and what
// these parts share.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "link/frame_link.h"

namespace octavo {

class PackedAdapter;

// Python's side of an adapter. Steps share the adapter itself: its last use may be where Python's
// lock is not held, and that of an object of Python needs that lock.
struct OwnedAdapter {
  std::shared_ptr<const PackedAdapter> adapter;
};

// The bytes of a message; throws std::runtime_error for any other frame.     stages.cpp
nanobind::bytes message_of(const FrameLink::Frame& frame);

void translate_errors();                     // errors.cpp
void bind_adapters(nanobind::module_& m);    // adapters.cpp
void bind_merge_table(nanobind::module_& m); // merge_table.cpp
void bind_nodes(nanobind::module_& m);       // nodes.cpp
void bind_step(nanobind::module_& m);        // step.cpp
void bind_row_tensors(nanobind::module_& m); // row_tensors.cpp
void bind_weights(nanobind::module_& m);     // weights.cpp
void bind_program(nanobind::module_& m);     // program.cpp
void bind_peak_rates(nanobind::module_& m);  // peak_rates.cpp
void bind_ranks(nanobind::module_& m);       // ranks.cpp
void bind_stages(nanobind::module_& m);      // stages.cpp
void bind_trials(nanobind::module_& m);      // trials.cpp

}  // namespace octavo
