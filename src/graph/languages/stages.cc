#include "graph/languages/stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/text.h"

namespace shardinit {
namespace {

using Counts = std::optional<std::vector<int64_t>>;

// Distributes layers by Megatron's num_layers_in_first_pipeline_stage and
// num_layers_in_last_pipeline_stage. Each is the number of a rank's layers in all rounds, split
// equally over the rounds. The ranks between share the rest.
Counts DistributeByRanks(const StageCounts& of, std::string* problem) {
  std::vector<int64_t> sizes(static_cast<size_t>(of.ranks));
  const int64_t fixed = of.in_first.value_or(0) + of.in_last.value_or(0);
  const int64_t between = of.ranks - of.in_first.has_value() - of.in_last.has_value();
  const int64_t rest = of.layers - fixed;
  if (of.ranks == 1) {
    sizes = {of.in_last ? *of.in_last : *of.in_first};  // as in Megatron, in_last takes precedence
    if (sizes[0] != of.layers) {
      *problem = fmt::format("the only rank has {} layers, but there are {}", sizes[0], of.layers);
      return {};
    }
  } else if (rest < 0 || (rest == 0) != (between == 0)) {
    *problem = fmt::format("{} of {} layers are on the ranks at the ends, with {} between", fixed,
                           of.layers, Count(between, "rank"));
    return {};
  } else if (between > 0 && rest % between != 0) {
    *problem = fmt::format("{} cannot be divided equally among {}", Count(rest, "layer"),
                           Count(between, "rank"));
    return {};
  } else {
    if (between > 0) std::ranges::fill(sizes, rest / between);
    if (of.in_first) sizes.front() = *of.in_first;
    if (of.in_last) sizes.back() = *of.in_last;
  }
  if (of.ranks > 1 && between == 0 && of.rounds > 1) {
    *problem = "Megatron-core has no virtual stages if the layers of both of 2 ranks are given";
    return {};
  }
  std::vector<int64_t> counts;
  for (int64_t s = 0; s < of.stages(); ++s) {
    const int64_t size = sizes[static_cast<size_t>(s % of.ranks)];
    if (size % of.rounds != 0) {
      *problem = fmt::format("the {} of rank {} cannot be divided equally among {} virtual stages",
                             Count(size, "layer"), s, of.rounds);
      return {};
    }
    counts.push_back(size / of.rounds);
  }
  return counts;
}

}  // namespace

Counts Distribute(const StageCounts& of, std::string* problem) {
  if (of.in_first || of.in_last) return DistributeByRanks(of, problem);
  const int64_t stages = of.stages(), ends = of.before + of.behind;
  const int64_t each = (of.layers + ends) / stages, more = (of.layers + ends) % stages;
  std::string all = Count(of.layers, "layer");
  if (ends > 0) all += fmt::format(" and {} for the ends", ends);
  if (more != 0 && !of.remainder) {
    *problem = fmt::format("{} cannot be divided equally among {} stages", all, stages);
    return {};
  }
  // torchtitan requires that each stage, without the remainder, has at least as many layers as an
  // end counts as.
  if (of.remainder && stages > 1 && each < std::max<int64_t>({of.before, of.behind, 1})) {
    *problem = fmt::format("{} for {} stages are {} for each, too few", all, stages, each);
    return {};
  }
  std::vector<int64_t> counts(static_cast<size_t>(stages), each);
  for (int64_t s = 0; s < more; ++s) ++counts[static_cast<size_t>(s)];
  counts.front() -= of.before;
  counts.back() -= of.behind;
  for (const int64_t s : {int64_t{0}, stages - 1}) {
    if (counts[static_cast<size_t>(s)] >= 0) continue;
    const int64_t end = s == 0 ? of.before : of.behind;
    *problem = fmt::format("stage {} would have {}, fewer than the {} that its end counts as", s,
                           Count(counts[static_cast<size_t>(s)] + end, "layer"), end);
    return {};
  }
  return counts;
}

}  // namespace shardinit
