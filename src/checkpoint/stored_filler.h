// Supplies elements of a stored tensor, by their index in the whole tensor, to a view of stored
// tensors.
#pragma once

#include <functional>
#include <utility>

#include "generate/filler.h"
#include "generate/workers.h"

namespace shardinit {

// Returns a function that reads elements. It is for one thread, and keeps files open.
using ElementsOpener = std::function<BoxElements()>;

class StoredFiller final : public Filler {
 public:
  StoredFiller(ElementsOpener open, int bytes) : open_(std::move(open)), bytes_(bytes) {}

  bool wants_long_stretches() const override { return true; }

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    const BoxElements elements = open_();
    auto* at = static_cast<uint8_t*>(out);
    while (count > 0) {
      const auto [index, n] = NeighboursAt(runs, first, count);
      elements(index, n, at);
      first += n, count -= n, at += n * bytes_;
    }
  }

 private:
  const ElementsOpener open_;
  const int bytes_;
};

}  // namespace shardinit
