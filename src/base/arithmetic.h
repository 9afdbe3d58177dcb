// Sets the floating-point arithmetic that defines values, for one scope of a thread.
#pragma once

#include <cfenv>

namespace shardinit {

// The arithmetic rounds to nearest, keeps subnormal numbers and never traps. It overrides the
// settings of the program that loads the library, or of start code that -ffast-math links. Threads
// that start in the scope inherit it.
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
