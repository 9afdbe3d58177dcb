// Makes the elements of a drawn tensor.
#pragma once

#include <cstdint>

#include "tensor/box.h"

namespace shardinit {

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
