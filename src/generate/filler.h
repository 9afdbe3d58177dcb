// How the elements of a tensor that is drawn are made.
#pragma once

#include <cstdint>

#include "tensor/box.h"

namespace shardinit {

// Of one tensor. Safe to use from several threads.
class Filler {
 public:
  virtual ~Filler() = default;

  // As BoxFiller's.
  virtual void Prepare() const {}

  // Writes elements first … first + count - 1 of the runs, one run after another, as stored bytes.
  virtual void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const = 0;
};

}  // namespace shardinit
