// Collects the facts that `explain` reports about one tensor.
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

// The explained tensor.
struct ExplainedTensor {
  const Plan& plan;
  const Explanation& why;
  const Tensor& tensor;
  int64_t rank;  // the rank whose box is shown
};

// `matches` is the number of tensors that match the requested path.
Facts FactsOf(const ExplainedTensor& subject, int64_t matches);

// Returns the path, dtype and global shape of a tensor, for a row of a table.
Facts FactsOf(const Tensor& tensor);

// The order of the rows for people.
enum TensorSection { kTensor, kEngine, kSharding, kLayouts, kVariables };

// Joins parts as in `gain / sqrt(fan_in) = 1.41421 / sqrt(4096) = 0.0220971`, without repeats.
std::string Chain(const std::vector<std::string>& parts);

// Returns `[0:1024, 4096:8192]`, as Python slices a tensor.
std::string InSlices(const Box& box);

// Returns a fact about a setting as the user wrote it. `members` come before the setting's own
// members.
Fact FactOf(const Setting& setting, std::string label, Facts members = {});

// Returns a list of settings as the user wrote them, with a label for each.
template <typename F>
Fact FactOf(std::string_view key, const std::vector<Setting>& settings, F label) {
  FactList list;
  for (const Setting& setting : settings) {
    list.items.push_back(FactOf(setting, label(setting, list.items.empty())));
  }
  return {key, std::move(list)};
}

// Adds how and why the tensor is sharded, and which parts the subject's rank holds.
void AddSharding(const ExplainedTensor& subject, Facts* facts);

}  // namespace shardinit
