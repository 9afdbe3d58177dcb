// The arithmetic that values are defined by, for a scope of a thread.
#pragma once

#include <cfenv>

namespace shardinit {

// Rounding to nearest, subnormal numbers as they are, no traps, whatever was set before: by a
// program that the library runs in, by start code that -ffast-math links. Threads that are
// started meanwhile inherit it.
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
