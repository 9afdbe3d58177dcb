// Supplies elements of a stored tensor, by their index in the whole tensor, to a view of stored
// tensors.
#pragma once

#include <utility>

#include "formats/pieces.h"
#include "generate/filler.h"
#include "generate/workers.h"

namespace shardinit {

class StoredFiller final : public Filler {
 public:
  StoredFiller(BoxElements elements, int bytes) : elements_(std::move(elements)), bytes_(bytes) {}

  bool wants_long_stretches() const override { return true; }

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    auto* at = static_cast<uint8_t*>(out);
    while (count > 0) {
      const auto [index, n] = NeighboursAt(runs, first, count);
      elements_(index, n, at);
      first += n, count -= n, at += n * bytes_;
    }
  }

 private:
  const BoxElements elements_;
  const int bytes_;
};

}  // namespace shardinit
