#include "sharding/search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace shardinit {
namespace {

constexpr int64_t kMaxNodes = 1 << 21;
constexpr int64_t kMaxSteps = 1 << 27;  // Of fitting into memory: a few seconds.
constexpr size_t kMaxCandidates = 1 << 14, kMaxStates = 1 << 19;

// Axes that go together, which are one for a candidate.
struct AxisGroup {
  std::vector<size_t> axes;
  int64_t size;
};

// Computation axes each, then all batch axes.
std::vector<AxisGroup> GroupsOf(const StepModel& model) {
  std::vector<AxisGroup> groups;
  AxisGroup batch = {{}, 1};
  for (size_t a = 0; a < model.axes.size(); ++a) {
    const StepAxis& axis = model.axes[a];
    if (axis.size == 1 || axis.use == AxisUse::kOther) continue;
    if (axis.use == AxisUse::kComputation) {
      groups.push_back({{a}, axis.size});
    } else {
      batch.axes.push_back(a);
      batch.size *= axis.size;
    }
  }
  if (!batch.axes.empty()) groups.push_back(std::move(batch));
  return groups;
}

}  // namespace

std::vector<AxisCuts> Candidates(const StepModel& model, const StepWeight& weight) {
  const std::vector<AxisGroup> groups = GroupsOf(model);
  const size_t dimensions = weight.shape.size();
  // Large dimensions first, then the first ones; last, none.
  std::vector<int> order(dimensions + 1);
  std::iota(order.begin(), order.end(), 0);
  order.back() = -1;
  std::stable_sort(order.begin(), order.end() - 1, [&](int a, int b) {
    return weight.shape[static_cast<size_t>(a)] > weight.shape[static_cast<size_t>(b)];
  });

  std::vector<AxisCuts> even, padded;
  bool any_even_is_full = false;
  std::vector<size_t> digits(groups.size(), 0);
  double combinations = 1;
  for (size_t g = 0; g < groups.size(); ++g) combinations *= static_cast<double>(order.size());
  if (combinations > static_cast<double>(kMaxCandidates)) return {};
  for (bool more = true; more;) {
    std::vector<int64_t> parts(dimensions, 1);
    AxisCuts cuts(model.axes.size(), -1);
    bool is_full = true;
    for (size_t g = 0; g < groups.size(); ++g) {
      const int d = order[digits[g]];
      is_full &= d >= 0;
      for (const size_t axis : groups[g].axes) cuts[axis] = d;
      if (d >= 0) parts[static_cast<size_t>(d)] *= groups[g].size;
    }
    bool is_even = true;
    for (size_t d = 0; d < dimensions; ++d) is_even &= weight.shape[d] % parts[d] == 0;
    bool is_maximal = true;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (order[digits[g]] >= 0) continue;
      for (size_t d = 0; d < dimensions; ++d) {
        is_maximal &= weight.shape[d] % (parts[d] * groups[g].size) != 0;
      }
    }
    if (is_even && (is_maximal || dimensions == 1)) {
      even.push_back(cuts);
      any_even_is_full |= is_full;
    } else if (!is_even && is_full) {
      padded.push_back(cuts);
    }
    more = false;
    for (size_t g = 0; g < digits.size() && !more; ++g) {
      if (++digits[g] < order.size()) {
        more = true;
      } else {
        digits[g] = 0;
      }
    }
  }
  // A dimension of its own for each group first: a rank's part is closer to a square.
  const auto crowd = [&](const AxisCuts& cuts) {
    int shared = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t h = 0; h < g; ++h) {
        const int d = cuts[groups[g].axes.front()];
        shared += d >= 0 && d == cuts[groups[h].axes.front()];
      }
    }
    return shared;
  };
  std::stable_sort(even.begin(), even.end(),
                   [&](const AxisCuts& a, const AxisCuts& b) { return crowd(a) < crowd(b); });
  if (!any_even_is_full) even.insert(even.end(), padded.begin(), padded.end());
  return even;
}

namespace {

// What the search compares: no padding before least padding, then seconds.
struct Key {
  double padding = 0, seconds = 0;

  Key operator+(const Key& other) const {
    return {padding + other.padding, seconds + other.seconds};
  }
  bool IsBelow(const Key& other) const {
    constexpr double kSame = 1 - 1e-12;
    return padding != other.padding ? padding < other.padding : seconds < other.seconds * kSame;
  }
};

struct Choice {
  AxisCuts cuts;
  Key key;  // With the disagreements that are settled.
  double bytes;
};

struct SearchWeight {
  std::vector<Choice> choices;
  double least_bytes;
  size_t best = 0;

  Key bound() const { return choices[best].key; }
  // The first of the least, and of these one of least bytes.
  void Choose() {
    best = 0;
    for (size_t c = 1; c < choices.size(); ++c) {
      const Choice &a = choices[c], &b = choices[best];
      if (a.key.IsBelow(b.key) || (!b.key.IsBelow(a.key) && a.bytes < b.bytes)) best = c;
    }
  }
};

// Whether activations along a logical axis are cut by a computation axis.
struct Question {
  int logical;
  size_t axis;
  double weight = 0;  // Seconds that hang on it.
  struct Use {
    size_t weight, dimension;
  };
  std::vector<Use> uses = {};
};

class Search {
 public:
  Search(const StepModel& model, const std::vector<std::optional<AxisCuts>>& fixed,
         std::optional<double> memory)
      : model_(model), memory_(memory.value_or(std::numeric_limits<double>::infinity())) {
    for (size_t w = 0; w < model.weights.size(); ++w) AddWeight(model.weights[w], fixed[w]);
    Ask();
  }

  SearchResult Run() {
    SearchResult result;
    if (gave_up_) {  // Some weight has no choices, and so no least bytes.
      result.status = SearchResult::kTooMany;
      return result;
    }
    for (const SearchWeight& weight : weights_) {
      result.cost.rank_bytes += weight.least_bytes;
    }
    if (result.cost.rank_bytes > memory_) {
      result.status = SearchResult::kTooLittleMemory;
      return result;
    }
    Visit(0);
    if (gave_up_) {
      result.status = SearchResult::kTooMany;
      return result;
    }
    for (size_t w = 0; w < weights_.size(); ++w) {
      result.cuts.push_back(weights_[w].choices[found_[w]].cuts);
    }
    result.cost = CostOf(model_, result.cuts);
    return result;
  }

 private:
  void AddWeight(const StepWeight& weight, const std::optional<AxisCuts>& fixed) {
    const std::vector<AxisCuts> candidates =
        fixed ? std::vector<AxisCuts>{*fixed} : Candidates(model_, weight);
    SearchWeight entry;
    entry.least_bytes = std::numeric_limits<double>::infinity();
    for (const AxisCuts& cuts : candidates) {
      const StepCost cost = CostAlone(model_, weight, cuts);
      entry.choices.push_back({cuts, {cost.padding, cost.seconds}, cost.rank_bytes});
      entry.least_bytes = std::min(entry.least_bytes, cost.rank_bytes);
    }
    gave_up_ |= entry.choices.empty();
    if (!gave_up_) entry.Choose();
    weights_.push_back(std::move(entry));
  }

  // A question for each pair of axes, if a matrix has the logical one: else activations along it
  // are whole.
  void Ask() {
    std::map<std::pair<int, size_t>, Question> questions;
    std::vector<bool> has_matrix(static_cast<size_t>(model_.logical_axes), false);
    for (size_t w = 0; w < model_.weights.size(); ++w) {
      const StepWeight& weight = model_.weights[w];
      for (size_t d = 0; d < weight.shape.size(); ++d) {
        const int logical = weight.logical[d];
        if (logical < 0) continue;
        if (weight.roles[d] == DimensionRole::kContracted ||
            weight.roles[d] == DimensionRole::kProduced) {
          has_matrix[static_cast<size_t>(logical)] = true;
        }
        for (size_t a = 0; a < model_.axes.size(); ++a) {
          const StepAxis& axis = model_.axes[a];
          if (axis.use != AxisUse::kComputation || axis.size == 1) continue;
          Question& question = questions[{logical, a}];
          question.logical = logical;
          question.axis = a;
          question.uses.push_back({w, d});
          AxisCuts whole(model_.axes.size(), -1);
          question.weight += Disagreement(model_, weight, whole, d, a, true) / axis.bandwidth;
        }
      }
    }
    for (auto& [pair, question] : questions) {
      if (has_matrix[static_cast<size_t>(question.logical)]) {
        questions_.push_back(std::move(question));
      } else {
        Settle(question, false);
      }
    }
    std::stable_sort(questions_.begin(), questions_.end(),
                     [](const Question& a, const Question& b) { return a.weight > b.weight; });
  }

  void Settle(const Question& question, bool is_cut) {
    for (const auto& [w, d] : question.uses) {
      for (Choice& choice : weights_[w].choices) {
        choice.key.seconds +=
            Disagreement(model_, model_.weights[w], choice.cuts, d, question.axis, is_cut) /
            model_.axes[question.axis].bandwidth;
      }
      if (!gave_up_) weights_[w].Choose();
    }
  }

  Key Bound() const {
    Key bound;
    for (const SearchWeight& weight : weights_) bound = bound + weight.bound();
    return bound;
  }

  double LeastBytes() const {
    double bytes = 0;
    for (const SearchWeight& weight : weights_) bytes += weight.least_bytes;
    return bytes;
  }

  void Visit(size_t next) {
    if (gave_up_ || ++nodes_ > kMaxNodes) {
      gave_up_ = true;
      return;
    }
    if (is_found_ && !Bound().IsBelow(least_)) return;
    if (LeastBytes() > memory_) return;
    if (next == questions_.size()) return Finish();
    // The more promising answer first.
    const Question& question = questions_[next];
    std::vector<std::pair<size_t, SearchWeight>> before;
    for (const auto& use : question.uses) {
      if (before.empty() || before.back().first != use.weight) {
        before.emplace_back(use.weight, weights_[use.weight]);
      }
    }
    const auto restore = [&] {
      for (const auto& [w, weight] : before) weights_[w] = weight;
    };
    Key bounds[2];
    for (const bool is_cut : {false, true}) {
      Settle(question, is_cut);
      bounds[is_cut] = Bound();
      restore();
    }
    const bool first = bounds[1].IsBelow(bounds[0]);
    for (const bool is_cut : {first, !first}) {
      Settle(question, is_cut);
      Visit(next + 1);
      restore();
    }
  }

  // All questions are answered: each weight takes what is best for it or, where memory is too
  // little for that, what is best together.
  void Finish() {
    double bytes = 0;
    for (const SearchWeight& weight : weights_) bytes += weight.choices[weight.best].bytes;
    if (bytes <= memory_) {
      least_ = Bound();
      is_found_ = true;
      found_.clear();
      for (const SearchWeight& weight : weights_) found_.push_back(weight.best);
      return;
    }
    Fit();
  }

  // One weight after the other; of what they take together, all that nothing is better than both
  // in bytes and in cost.
  void Fit() {
    struct State {
      double bytes;
      Key key;
      int64_t before;
      size_t choice;
    };
    std::vector<double> rest_bytes(weights_.size() + 1, 0);
    std::vector<Key> rest(weights_.size() + 1);
    for (size_t w = weights_.size(); w-- > 0;) {
      rest_bytes[w] = rest_bytes[w + 1] + weights_[w].least_bytes;
      rest[w] = rest[w + 1] + weights_[w].bound();
    }
    std::vector<std::vector<State>> states = {{{0, {}, -1, 0}}};
    for (size_t w = 0; w < weights_.size(); ++w) {
      std::vector<State> all;
      for (size_t s = 0; s < states.back().size(); ++s) {
        const State& state = states.back()[s];
        steps_ += std::ssize(weights_[w].choices);
        if (steps_ > kMaxSteps) gave_up_ = true;
        if (gave_up_) return;
        for (size_t c = 0; c < weights_[w].choices.size(); ++c) {
          const Choice& choice = weights_[w].choices[c];
          const State after = {state.bytes + choice.bytes, state.key + choice.key,
                               static_cast<int64_t>(s), c};
          if (after.bytes + rest_bytes[w + 1] > memory_) continue;
          if (is_found_ && !(after.key + rest[w + 1]).IsBelow(least_)) continue;
          all.push_back(after);
        }
      }
      std::stable_sort(all.begin(), all.end(), [](const State& a, const State& b) {
        return std::tuple(a.bytes, a.key.padding, a.key.seconds) <
               std::tuple(b.bytes, b.key.padding, b.key.seconds);
      });
      std::vector<State> kept;
      for (const State& state : all) {
        if (kept.empty() || state.key.IsBelow(kept.back().key)) kept.push_back(state);
      }
      if (kept.size() > kMaxStates) gave_up_ = true;
      if (gave_up_ || kept.empty()) return;
      states.push_back(std::move(kept));
    }
    // Those that are left are below what was found; of least cost is the last one.
    is_found_ = true;
    least_ = states.back().back().key;
    found_.assign(weights_.size(), 0);
    auto at = static_cast<int64_t>(states.back().size()) - 1;
    for (size_t w = weights_.size(); w-- > 0;) {
      const State& state = states[w + 1][static_cast<size_t>(at)];
      found_[w] = state.choice;
      at = state.before;
    }
  }

  const StepModel& model_;
  const double memory_;
  std::vector<SearchWeight> weights_;
  std::vector<Question> questions_;  // Those on which most hangs first.
  int64_t nodes_ = 0, steps_ = 0;
  bool gave_up_ = false, is_found_ = false;
  Key least_;
  std::vector<size_t> found_;
};

}  // namespace

SearchResult FindSharding(const StepModel& model, const std::vector<std::optional<AxisCuts>>& fixed,
                          std::optional<double> memory) {
  return Search(model, fixed, memory).Run();
}

}  // namespace shardinit
