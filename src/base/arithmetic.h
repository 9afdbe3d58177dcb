// Sets the arithmetic that values are defined by, for a scope of a thread.
#pragma once

#include <cfenv>

namespace shardinit {

// The arithmetic is rounding to nearest, subnormal numbers as they are, and no traps, whatever was
// set before: by a program that the library runs in, or by start code that -ffast-math links.
// Threads that are started meanwhile inherit it.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace shardinit
