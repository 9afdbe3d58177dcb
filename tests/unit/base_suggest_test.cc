#include <gtest/gtest.h>

#include "base/suggest.h"

namespace shardinit {
namespace {

TEST(Closest, CountsInsertionsDeletionsChangesAndSwaps) {
  const std::vector<std::string> keys = {"name", "seed", "dtype", "modules"};
  EXPECT_EQ(Closest("naem", keys), "name");
  EXPECT_EQ(Closest("sed", keys), "seed");
  EXPECT_EQ(Closest("dtypee", keys), "dtype");
  EXPECT_EQ(Closest("modulse", keys), "modules");
  EXPECT_EQ(Closest("mdlues", keys), "modules");
}

TEST(Closest, SuggestsNothingIfNoNameIsClose) {
  EXPECT_EQ(Closest("shape", {"name", "seed"}), "");
  EXPECT_EQ(Closest("d", {"e", "f"}), "");
  EXPECT_EQ(Closest("", {"a"}), "");
  EXPECT_EQ(Closest(std::string(10000, 'x'), {"xx"}), "");
}

TEST(Closest, SuggestsTheFirstOfTheNearestNames) {
  EXPECT_EQ(Closest("tensor", {"tenso", "tensor"}), "tensor");
  EXPECT_EQ(Closest("axes", {"axis", "axas"}), "axis");
}

TEST(DidYouMean, ListsAllNamesIfThereAreFew) {
  EXPECT_EQ(DidYouMean("erorr", {"error", "chunk"}), "did you mean `error`?");
  EXPECT_EQ(DidYouMean("none", {"error", "chunk"}), "one of `error`, `chunk`");
  EXPECT_EQ(DidYouMean("none", {"axes"}), "the only one is `axes`");
  EXPECT_EQ(DidYouMean("none", {}), "");
}

TEST(Closest, SuggestsNamesWithACommonPrefix) {
  const std::vector<std::string> names = {"gen", "plan", "generate_all", "d"};
  EXPECT_EQ(Closest("generate", names), "gen");
  EXPECT_EQ(Closest("planning", names), "plan");
  EXPECT_EQ(Closest("generate_al", names), "generate_all");  // The nearest name comes first.
  EXPECT_EQ(Closest("dimension", names), "");
  EXPECT_EQ(Closest("pl", names), "");
}

}  // namespace
}  // namespace shardinit
