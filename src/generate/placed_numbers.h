// The numbers that an expression takes from a random engine by key or by place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "generate/engines.h"

namespace shardinit {

// The numbers of one call in an expression. It is safe to use from several threads.
class PlacedNumbers {
 public:
  PlacedNumbers(const Program::PlacedCall& call, const Stream& stream);

  // The numbers that one thread has at hand, since callers ask for neighbours one after another.
  struct Window {
    uint64_t first = 0;
    std::vector<double> values = {};
  };

  // Sets out[i] to number element[i], or to NaN if there is none.
  void Get(const double* element, size_t count, Window& window, double* out) const;

 private:
  CalledNumbers called_;
};

}  // namespace shardinit
