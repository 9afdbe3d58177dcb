// Forces an instruction set for one test and its calls, but not for the test after it.
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
  // This runs also where an assertion leaves the test.
  ~ForcedTarget() { kernels::ForceTarget(""); }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

}  // namespace shardinit
