// Generates tensors that have parts, `init: {parts: …}`, each part like a tensor of its own.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "generate/fill.h"
#include "generate/filler.h"

namespace shardinit {
namespace {

class PartsFiller final : public Filler {
 public:
  PartsFiller(const Parts& parts, const Tensor& tensor)
      : bytes_(InfoOf(tensor.dtype()).bytes), axis_(parts.axis) {
    const auto axis = static_cast<size_t>(parts.axis);
    int64_t inner = 1;
    for (size_t d = axis + 1; d < tensor.shape().size(); ++d) inner *= tensor.shape()[d];
    block_ = tensor.shape()[axis] * inner;
    row_ = inner;
    Tensor own = tensor;
    int64_t begin = 0;
    for (const Part& part : parts.of->parts) {
      own.Edit().shape = ShapeOf(part, parts, tensor.shape());
      own.Edit().distribution = part.distribution;
      fillers_.push_back({begin, part.length * inner, FillerOf(own)});
      begin += part.length * inner;
      const uint32_t next = own.stream().draw + static_cast<uint32_t>(DrawsOf(own.distribution()));
      own.set_stream(DrawOf(own.stream(), next));
    }
  }

  bool wants_long_stretches() const override {
    return std::any_of(fillers_.begin(), fillers_.end(),
                       [](const OwnFiller& each) { return each.filler->wants_long_stretches(); });
  }

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    auto* at = static_cast<uint8_t*>(out);
    for (int64_t made; count > 0; first += made, count -= made, at += made * bytes_) {
      const auto [linear, in_run] = NeighboursAt(runs, first, count);
      const int64_t place = linear % block_;
      const auto own = std::find_if(fillers_.begin(), fillers_.end(), [&](const OwnFiller& each) {
        return place < each.begin + each.length;
      });
      made = std::min(in_run, own->begin + own->length - place);
      const int64_t start = linear / block_ * own->length + place - own->begin;
      try {
        own->filler->Fill(Runs(start, {}, made), 0, made, at);
      } catch (const Error& error) {
        // A part reports indices within the part, because it does not know the whole tensor.
        if (error.code() != ExitCode::kUsage || own->begin == 0) throw;
        throw Error(
            error.code(),
            fmt::format("{}; these indices count in the part that begins at {} of dimension {}",
                        error.what(), own->begin / row_, axis_),
            error.hint());
      }
    }
  }

 private:
  // Generates `length` elements, from `begin` on, in each stretch of `block_` elements.
  struct OwnFiller {
    int64_t begin, length;
    std::unique_ptr<const Filler> filler;
  };
  const int64_t bytes_, axis_;
  int64_t block_, row_;  // elements in one index before the parts' dimension, and in one along it
  std::vector<OwnFiller> fillers_;
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const Parts& distribution, const Tensor& tensor) {
  return std::make_unique<PartsFiller>(distribution, tensor);
}

}  // namespace shardinit
