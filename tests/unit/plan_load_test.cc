#include <gtest/gtest.h>

#include <locale>
#include <string>

#include "base/error.h"
#include "plan/load.h"
#include "support/spec_text.h"

namespace shardinit {
namespace {

constexpr char kText[] =
    "shardinit: 1\n"
    "name: x\n"
    "dtype: f32\n"
    "vars: {d: 12345, s: 0.25}\n"
    "modules: {w: {shape: [d], init: {normal: {std: 1.5e-1 * s}}}, "
    "e: {shape: [3], init: {expr: \"i0 * 0.5 + sqrt(2)\"}}}\n";

std::string PlanOf(const SpecRequest& request) {
  Diagnostics diagnostics;
  return WritePlan(LoadPlan({request, {}, {}}, diagnostics));
}

TEST(LoadPlan, PlanOfATextEqualsPlanOfItsFile) {
  const WorkingFolder folder({{"x.yaml", kText}, {"sub/base.yaml", kText}});
  const std::string plan = PlanOf({.path = "x.yaml", .sets = {}, .mesh = {}});
  EXPECT_EQ(PlanOf({.path = "<text>", .sets = {}, .mesh = {}, .text = kText}), plan);
  // Includes are relative to the name. A file of that name need not exist, and is not read.
  const std::string over = "shardinit: 1\ninclude: base.yaml\n";
  for (const char* path : {"sub/none.yaml", "sub/base.yaml"}) {
    EXPECT_EQ(PlanOf({.path = path, .sets = {}, .mesh = {}, .text = over}), plan) << path;
  }
  EXPECT_THROW(PlanOf({.path = "base.yaml", .sets = {}, .mesh = {}, .text = over}), InvalidSpec);
  EXPECT_THROW(PlanOf({.path = "x", .sets = {}, .mesh = {}, .text = std::string(9 << 20, ' ')}),
               Error);
}

// A host program may have set a locale that writes 1.234,5 for 1234.5.
class Commas : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(LoadPlan, PlansDoNotDependOnTheLocale) {
  const SpecRequest request{.path = "<text>", .sets = {}, .mesh = {}, .text = kText};
  const std::string plan = PlanOf(request);
  const std::locale before = std::locale::global(std::locale(std::locale(), new Commas));
  const std::string again = PlanOf(request);
  std::locale::global(before);
  EXPECT_EQ(again, plan);
}

}  // namespace
}  // namespace shardinit
