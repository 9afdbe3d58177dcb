// Forces an instruction set for one test, including its calls, but not for later tests.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/kernels.h"

namespace shardinit {

class ForcedTarget {
 public:
  explicit ForcedTarget(const std::string& name) {
    EXPECT_TRUE(kernels::ForceTarget(name)) << name;
  }
  // This also runs if an assertion leaves the test.
  ~ForcedTarget() { kernels::ForceTarget(""); }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

}  // namespace shardinit
