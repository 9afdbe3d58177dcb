// How elements are made that are more than one draw each.
#pragma once

#include <cstdint>

namespace shardinit {

// Of one box; as BoxFiller, which see.
class Filler {
 public:
  virtual ~Filler() = default;
  virtual void Prepare() const {}
  virtual void Fill(int64_t first, int64_t count, void* out) const = 0;
};

}  // namespace shardinit
