// Copies the values of a tensor from a source, `init: {source: …}`: the bytes, or, if the types
// differ, the numbers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "generate/evaluator.h"
#include "generate/filler.h"
#include "generate/source_cells.h"
#include "tensor/convert.h"

namespace shardinit {
namespace {

class FromSourceFiller final : public Filler {
 public:
  FromSourceFiller(const FromSource& from, const Tensor& tensor)
      : from_(from), path_(tensor.path()), dtype_(tensor.dtype()), shape_(tensor.shape()) {
    for (const ProgramPtr& program : from.index) {
      index_.push_back(std::make_unique<Evaluator>(program, tensor));
    }
  }

  bool wants_long_stretches() const override { return true; }

  // Throws Error as the source does, and kUsage for an element that the tensor's type cannot hold,
  // or whose index is not in the source.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    ::shardinit::Check(from_.data != nullptr,
                       "values of a plan that was read, and not made of a spec");
    SourceCells cells(*from_.data);
    auto* const at = static_cast<uint8_t*>(out);
    const int64_t bytes = InfoOf(dtype_).bytes;
    // A scalar of the source has an empty index, and fills tensors of all shapes.
    if (!index_.empty() || from_.data->shape().empty()) {
      return FillByIndex(runs, first, count, cells, at);
    }
    for (int64_t done = 0; done < count;) {
      auto [linear, length] = NeighboursAt(runs, first + done, count - done);
      Copy(cells, linear, &length, runs, first + done, at + done * bytes);
      done += length;
    }
  }

 private:
  void FillByIndex(const Runs& runs, int64_t first, int64_t count, SourceCells& cells,
                   uint8_t* at) const {
    std::vector<Evaluator::State> states;
    for (const auto& evaluator : index_) states.push_back(evaluator->Begin());
    std::vector<int64_t> places(static_cast<size_t>(std::min(count, kGathered)));
    std::vector<const double*> index(index_.size());
    for (int64_t made; count > 0; first += made, count -= made) {
      made = std::min(count, kGathered);
      for (int64_t done = 0, tile; done < made; done += tile) {
        tile = std::min(made - done, kTile);
        for (size_t d = 0; d < index_.size(); ++d) {
          index[d] = index_[d]->Evaluate(runs, first + done, tile, states[d]);
        }
        const int64_t good = FindPlaces(from_.data->shape(), index, tile, places.data() + done);
        if (good < tile) RefuseIndex(runs, first + done + good, index, good);
      }
      Gather({places.data(), static_cast<size_t>(made)}, runs, first, cells, at);
      at += made * InfoOf(dtype_).bytes;
    }
  }

  // Copies the elements at these places, cell after cell, so that no cell is read twice.
  void Gather(std::span<const int64_t> places, const Runs& runs, int64_t first, SourceCells& cells,
              uint8_t* out) const {
    InCells(places, from_.data->cell_elements(), [&](int64_t i, int64_t length) {
      Copy(cells, places[static_cast<size_t>(i)], &length, runs, first + i,
           out + i * InfoOf(dtype_).bytes);
      return length;
    });
  }

  // Copies up to `*length` elements of the source, from `place` on, and sets `*length` to the
  // number copied. They are the elements of the runs from `first` on.
  void Copy(SourceCells& cells, int64_t place, int64_t* length, const Runs& runs, int64_t first,
            uint8_t* out) const {
    const DType dtype = from_.data->dtype();
    const uint8_t* const from = cells.At(place, length);
    const int64_t read = InfoOf(dtype).bytes, made = InfoOf(dtype_).bytes;
    if (dtype == dtype_) {
      std::memcpy(out, from, static_cast<size_t>(*length * made));
      return;
    }
    for (int64_t i = 0; i < *length; ++i) {
      if (Convert(from + i * read, dtype, dtype_, out + i * made)) continue;
      throw Usage(
          fmt::format("element {} of `{}` is {} in {}, which {} cannot hold",
                      TextOf(runs, first + i), path_, NumberInText(from + i * read, dtype),
                      from_.data->text(), InfoOf(dtype_).name),
          fmt::format("the source has {}: choose a `dtype` that holds it", InfoOf(dtype).name));
    }
  }

  std::string TextOf(const Runs& runs, int64_t element) const {
    return IndexInText(shape_, NeighboursAt(runs, element, 1).index);
  }

  [[noreturn]] void RefuseIndex(const Runs& runs, int64_t element,
                                const std::vector<const double*>& index, int64_t i) const {
    std::vector<double> at;
    for (const double* each : index) at.push_back(each[i]);
    throw Usage(fmt::format("element {} of `{}` would be element [{}] of {}, which has the shape "
                            "[{}]",
                            TextOf(runs, element), path_, fmt::join(at, ", "), from_.data->text(),
                            fmt::join(from_.data->shape(), ", ")),
                "give an `index` that is in the source for all elements");
  }

  const FromSource from_;
  const std::string path_;
  const DType dtype_;
  const Shape shape_;
  std::vector<std::unique_ptr<const Evaluator>> index_;
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const FromSource& distribution, const Tensor& tensor) {
  return std::make_unique<FromSourceFiller>(distribution, tensor);
}

}  // namespace shardinit
