// How elements are made that are more than one draw each.
#pragma once

#include <cstdint>

#include "tensor/box.h"

namespace shardinit {

// Of one tensor; as DrawnFiller, which see.
class Filler {
 public:
  virtual ~Filler() = default;
  virtual void Prepare() const {}
  virtual void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const = 0;
};

}  // namespace shardinit
