// Collects the facts that `explain` reports of one tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/explanation.h"
#include "plan/plan.h"
#include "report/facts.h"

namespace shardinit {

// The tensor that is explained.
struct Subject {
  const Plan& plan;
  const Explanation& why;
  const Tensor& tensor;
  int64_t rank;  // the rank whose box is shown
};

// `matches` is the number of tensors whose paths match the one that was asked for.
Facts FactsOf(const Subject& subject, int64_t matches);

// The rows for people stand in this order.
enum TensorSection { kTensor, kEngine, kSharding, kLayouts, kVariables };

// Returns `gain / sqrt(fan_in) = 1.41421 / sqrt(4096) = 0.0220971`, without repeats.
std::string Chain(const std::vector<std::string>& parts);

// Returns `[0:1024, 4096:8192]`, as Python slices a tensor.
std::string InSlices(const Box& box);

// Makes a fact of a setting as it was written. `members` stand before the setting's own.
Fact FactOf(const Setting& setting, std::string label, Facts members = {});

// Makes a list of settings as they were written, with a label for each.
template <typename F>
Fact FactOf(std::string_view key, const std::vector<Setting>& settings, F label) {
  FactList list;
  for (const Setting& setting : settings) {
    list.items.push_back(FactOf(setting, label(setting, list.items.empty())));
  }
  return {key, std::move(list)};
}

// Says how the tensor is sharded and why, and what the subject's rank has of it.
void AddSharding(const Subject& subject, Facts* facts);

}  // namespace shardinit
