#include <gtest/gtest.h>

#include <string>

#include "sharding/rules.h"

namespace shardinit {
namespace {

constexpr int X = 0, Y = 1, Z = 2;

struct Resolved {
  PartitionSpec spec;
  std::vector<int> fired;
  bool operator==(const Resolved&) const = default;
};

Resolved Resolve(const std::vector<std::string>& logical, const std::vector<Rule>& rules) {
  Resolved resolved;
  resolved.spec = ResolveRules(logical, rules, &resolved.fired);
  return resolved;
}

// The example in the docstring of flax.linen.logical_to_mesh_axes, which gives
// PartitionSpec('X', None, 'Y', None).
TEST(ResolveRules, AgreesWithFlax) {
  EXPECT_EQ(Resolve({"batch", "length", "heads", "features"},
                    {{"batch", {X}}, {"features", {X}}, {"heads", {Y}}, {"batch", {Z}}}),
            (Resolved{{{X}, {}, {Y}, {}}, {0, -1, 2, -1}}));
}

TEST(ResolveRules, TakesALaterRuleOfTheSameNameAsAFallback) {
  EXPECT_EQ(Resolve({"batch", "embed"}, {{"batch", {X}}, {"embed", {X}}, {"embed", {Y}}}),
            (Resolved{{{X}, {Y}}, {0, 2}}));
}

TEST(ResolveRules, FollowsTheOrderOfRulesNotOfDimensions) {
  EXPECT_EQ(Resolve({"a", "b"}, {{"b", {X}}, {"a", {X}}}), (Resolved{{{}, {X}}, {-1, 0}}));
}

TEST(ResolveRules, SettlesADimensionAsWhole) {
  EXPECT_EQ(Resolve({"a", "b"}, {{"a", {}}, {"a", {X}}, {"b", {X}}}),
            (Resolved{{{}, {X}}, {0, 2}}));
}

TEST(ResolveRules, TakesTuplesWholeOrNotAtAll) {
  EXPECT_EQ(Resolve({"a", "b"}, {{"a", {X}}, {"b", {Y, X}}, {"b", {Z, Y}}}),
            (Resolved{{{X}, {Z, Y}}, {0, 2}}));
  EXPECT_EQ(Resolve({"a", "b"}, {{"a", {Y, X}}, {"b", {X}}}), (Resolved{{{Y, X}, {}}, {0, -1}}));
}

TEST(ResolveRules, LeavesUnnamedDimensionsWhole) {
  EXPECT_EQ(Resolve({"", "a", ""}, {{"a", {X}}}), (Resolved{{{}, {X}, {}}, {-1, 0, -1}}));
  EXPECT_EQ(Resolve({}, {{"a", {X}}}), (Resolved{{}, {}}));
  EXPECT_EQ(Resolve({"a"}, {}), (Resolved{{{}}, {-1}}));
}

TEST(ResolveRules, TellsWhichRulesWereTried) {
  std::vector<int> fired;
  std::vector<RuleTrial> trials;
  ResolveRules({"b", "a", "b"},
               {{"a", {X}}, {"c", {}}, {"b", {Y, X}}, {"b", {Y}}, {"b", {}}, {"b", {Z}}}, &fired,
               &trials);
  std::string text;
  for (const RuleTrial& trial : trials) {
    text += std::to_string(trial.rule) + ">" + std::to_string(trial.dimension) + " " +
            std::to_string(trial.taken) + ", ";
  }
  // Rule 2 wants X, which dimension 1 has; with both b settled, rule 5 is not tried.
  EXPECT_EQ(text, "0>1 -1, 2>0 0, 3>0 -1, 4>2 -1, ");
}

}  // namespace
}  // namespace shardinit
