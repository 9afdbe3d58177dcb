#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sharding/rules.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

constexpr int X = 0, Y = 1, Z = 2;

struct Resolved {
  PartitionSpec spec;
  std::vector<int> fired;
  bool operator==(const Resolved&) const = default;
};

Resolved Resolve(const std::vector<std::string>& logical, const std::vector<Rule>& rules) {
  const RulesResult result = ResolveRules(logical, rules);
  Resolved resolved = {result.partition, std::vector<int>(logical.size(), -1)};
  for (const RuleTrial& trial : result.trials) {
    EXPECT_EQ(logical[trial.dimension], rules[trial.rule].logical);
    if (trial.taken < 0) resolved.fired[trial.dimension] = static_cast<int>(trial.rule);
  }
  return resolved;
}

// The example in the docstring of flax.linen.logical_to_mesh_axes, which gives
// PartitionSpec('X', None, 'Y', None).
TEST(ResolveRules, RulesAgreeWithFlax) {
  EXPECT_EQ(Resolve({"batch", "length", "heads", "features"},
                    {{"batch", {X}}, {"features", {X}}, {"heads", {Y}}, {"batch", {Z}}}),
            (Resolved{{{X}, {}, {Y}, {}}, {0, -1, 2, -1}}));
}

TEST(ResolveRules, LaterRuleOfTheSameNameIsAFallback) {
  EXPECT_EQ(Resolve({"batch", "embed"}, {{"batch", {X}}, {"embed", {X}}, {"embed", {Y}}}),
            (Resolved{{{X}, {Y}}, {0, 2}}));
}

TEST(ResolveRules, RulesApplyInTheirOwnOrder) {
  EXPECT_EQ(Resolve({"a", "b"}, {{"b", {X}}, {"a", {X}}}), (Resolved{{{}, {X}}, {-1, 0}}));
}

TEST(ResolveRules, DimensionsOfOneNameAreServedInOrder) {
  EXPECT_EQ(Resolve({"a", "a"}, {{"a", {X}}}), (Resolved{{{X}, {}}, {0, -1}}));
  EXPECT_EQ(Resolve({"a", "b", "a"}, {{"a", {X}}, {"a", {Y}}}),
            (Resolved{{{X}, {}, {Y}}, {0, -1, 1}}));
  EXPECT_EQ(Resolve({"a", "a", "a"}, {{"a", {}}, {"a", {X}}, {"a", {X}}, {"a", {Z}}}),
            (Resolved{{{}, {X}, {Z}}, {0, 1, 3}}));
}

// Each rule, in order, gives its axes, if they are free, to the first unresolved dimension with its
// name.
Resolved ByDefinition(const std::vector<std::string>& logical, const std::vector<Rule>& rules) {
  Resolved result{PartitionSpec(logical.size()), std::vector<int>(logical.size(), -1)};
  for (int r = 0; r < static_cast<int>(rules.size()); ++r) {
    const Rule& rule = rules[static_cast<size_t>(r)];
    bool taken = false;
    for (const DimensionPartition& by : result.spec.dimensions) {
      for (const int axis : by.axes) {
        taken |= std::find(rule.axes.begin(), rule.axes.end(), axis) != rule.axes.end();
      }
    }
    size_t d = 0;
    while (d < logical.size() && (logical[d] != rule.logical || result.fired[d] >= 0)) ++d;
    if (taken || d == logical.size()) continue;
    result.spec.dimensions[d] = rule.axes;
    result.fired[d] = r;
  }
  return result;
}

// Random rules follow the definition. Few names and axes make rules conflict often.
TEST(ResolveRules, RandomRulesFollowTheDefinition) {
  Random random(12);
  const auto name = [&] { return std::string(1, static_cast<char>('a' + random.In(0, 2))); };
  for (int i = 0; i < 5000; ++i) {
    std::vector<std::string> logical;
    for (int64_t d = random.In(0, 4); d > 0; --d) {
      logical.push_back(random.Chance(6) ? "" : name());
    }
    std::vector<Rule> rules;
    for (int64_t r = random.In(0, 6); r > 0; --r) {
      Rule rule{name(), {}};
      for (const int axis : {X, Y, Z}) {
        if (random.Chance(3)) rule.axes.push_back(axis);
      }
      rules.push_back(rule);
    }
    EXPECT_EQ(Resolve(logical, rules), ByDefinition(logical, rules));
  }
}

TEST(ResolveRules, RulesCanLeaveADimensionWhole) {
  EXPECT_EQ(Resolve({"a", "b"}, {{"a", {}}, {"a", {X}}, {"b", {X}}}),
            (Resolved{{{}, {X}}, {0, 2}}));
}

TEST(ResolveRules, TuplesOfAxesApplyCompletelyOrNotAtAll) {
  EXPECT_EQ(Resolve({"a", "b"}, {{"a", {X}}, {"b", {Y, X}}, {"b", {Z, Y}}}),
            (Resolved{{{X}, {Z, Y}}, {0, 2}}));
  EXPECT_EQ(Resolve({"a", "b"}, {{"a", {Y, X}}, {"b", {X}}}), (Resolved{{{Y, X}, {}}, {0, -1}}));
}

TEST(ResolveRules, LeavesUnnamedDimensionsWhole) {
  EXPECT_EQ(Resolve({"", "a", ""}, {{"a", {X}}}), (Resolved{{{}, {X}, {}}, {-1, 0, -1}}));
  EXPECT_EQ(Resolve({}, {{"a", {X}}}), (Resolved{{}, {}}));
  EXPECT_EQ(Resolve({"a"}, {}), (Resolved{{{}}, {-1}}));
}

TEST(ResolveRules, ReportsWhichRulesWereTried) {
  const RulesResult result = ResolveRules(
      {"b", "a", "b"}, {{"a", {X}}, {"c", {}}, {"b", {Y, X}}, {"b", {Y}}, {"b", {}}, {"b", {Z}}});
  std::string text;
  for (const RuleTrial& trial : result.trials) {
    text += std::to_string(trial.rule) + ">" + std::to_string(trial.dimension) + " " +
            std::to_string(trial.taken) + ", ";
  }
  // Rule 2 wants X, which dimension 1 has; both b are resolved, so rule 5 is not tried.
  EXPECT_EQ(text, "0>1 -1, 2>0 0, 3>0 -1, 4>2 -1, ");
}

}  // namespace
}  // namespace shardinit
