// Makes the elements of a drawn tensor.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/box.h"

namespace shardinit {

// Neighbours, and the global linear index of the first of them.
struct Neighbours {
  int64_t index, count;
};

// Returns the neighbours from an element of the runs on: all in its run, but at most `most`.
inline Neighbours NeighboursAt(const Runs& runs, int64_t element, int64_t most) {
  const int64_t column = element % runs.length();
  return {runs.Start(element / runs.length()) + column, std::min(most, runs.length() - column)};
}

// Makes elements of one tensor. It is safe to use from several threads.
class Filler {
 public:
  virtual ~Filler() = default;

  // Does what BoxFiller::Prepare does.
  virtual void Prepare() const {}

  // Writes elements first … first + count - 1 of the runs, one run after another, as stored bytes.
  virtual void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const = 0;
};

}  // namespace shardinit
