// The extension module of the engine: each file of bind/ adds its own part.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/parts.h"
#include "interface.inc"
#include "program/attention_plan.h"
#include "runtime/processor.h"

NB_MODULE(_native, m) {
  octavo::translate_errors();
  m.attr("INTERFACE") = kInterface;
  m.def("tiers", [] {
    std::vector<std::string> names;
    for (const octavo::KernelTable* tier : octavo::runnable_tiers()) names.emplace_back(tier->name);
    return names;
  });
  m.def("dropped_tiers", [] {
    std::map<std::string, std::string> reasons;
    for (const octavo::DroppedTier& tier : octavo::dropped_tiers())
      reasons[tier.name] = tier.reason;
    return reasons;
  });
  // Sizes that Python needs to lay out memory and to estimate how much of it a model takes.
  m.attr("PANEL") = octavo::kPanel;
  m.attr("DOWN_RANKS") = octavo::kDownRanks;
  m.attr("BLOCK_TOKENS") = octavo::kBlockTokens;
  m.attr("SPLIT_TOKENS") = octavo::kSplit;
  m.attr("RECORD_FLOATS") = octavo::kRecordHead;
  m.attr("MOST_SHARED_BYTES") = octavo::kMostSharedBytes;
  octavo::bind_adapters(m);
  octavo::bind_merge_table(m);
  octavo::bind_step(m);
  octavo::bind_row_tensors(m);
  octavo::bind_ranks(m);
  octavo::bind_weights(m);
  octavo::bind_program(m);
  octavo::bind_peak_rates(m);
  octavo::bind_stages(m);
  octavo::bind_nodes(m);
  octavo::bind_trials(m);
}
