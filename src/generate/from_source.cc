// Gives the values of a tensor from a source, `init: {source: …}`: its bytes, or, where the types
// differ, its numbers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "generate/evaluator.h"
#include "generate/filler.h"
#include "generate/source_cells.h"
#include "graph/graph.h"
#include "tensor/convert.h"

namespace shardinit {
namespace {

class FromSourceFiller final : public Filler {
 public:
  FromSourceFiller(const FromSource& from, const Tensor& tensor)
      : from_(from), path_(tensor.path), dtype_(tensor.dtype), shape_(tensor.shape) {
    for (const ProgramPtr& program : from.index) {
      index_.push_back(std::make_unique<Evaluator>(program, tensor));
    }
  }

  bool wants_long_stretches() const override { return true; }

  // Throws Error as the source does, and kUsage for an element that the tensor's type cannot hold,
  // or whose index is none of the source's.
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
  // Elements whose places in the source are found before any is copied: with more of them a
  // thread would take more than 12 MiB.
  static constexpr int64_t kGathered = 1 << 20;

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

  // Copies the elements at these places, cell after cell of the source, so that none is read twice.
  void Gather(std::span<const int64_t> places, const Runs& runs, int64_t first, SourceCells& cells,
              uint8_t* out) const {
    const std::vector<uint32_t> order = OrderOf(places);
    const auto count = std::ssize(places);
    const auto number = [&](int64_t i) -> int64_t {
      return order.empty() ? i : order[static_cast<size_t>(i)];
    };
    for (int64_t done = 0; done < count;) {
      const int64_t i = number(done);
      int64_t length = 1;
      while (done + length < count && number(done + length) == i + length &&
             places[static_cast<size_t>(i + length)] == places[static_cast<size_t>(i)] + length) {
        ++length;
      }
      Copy(cells, places[static_cast<size_t>(i)], &length, runs, first + i,
           out + i * InfoOf(dtype_).bytes);
      done += length;
    }
  }

  // Returns the numbers of the places, those in one cell together; empty: they are so already.
  std::vector<uint32_t> OrderOf(std::span<const int64_t> places) const {
    const int64_t in_cell = from_.data->cell_elements();
    const auto [low, high] = std::minmax_element(places.begin(), places.end());
    const int64_t base = *low / in_cell, size = *high / in_cell - base + 1;
    int64_t changes = 0;
    for (size_t i = 1; i < places.size(); ++i) {
      changes += places[i] / in_cell != places[i - 1] / in_cell;
    }
    if (changes < size) return {};
    std::vector<uint32_t> order(places.size());
    // Few places in a large source are not worth a number for each of its cells.
    if (size > 4 * kGathered) {
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return std::pair(places[a], a) < std::pair(places[b], b);
      });
      return order;
    }
    std::vector<uint32_t> next(static_cast<size_t>(size) + 1);
    for (const int64_t place : places) ++next[static_cast<size_t>(place / in_cell - base) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (size_t i = 0; i < places.size(); ++i) {
      order[next[static_cast<size_t>(places[i] / in_cell - base)]++] = static_cast<uint32_t>(i);
    }
    return order;
  }

  // Copies up to `*length` elements of the source, from `place` on, and sets `*length` to how many
  // it has copied. They are those of the runs from `first` on.
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
      throw Error(
          ExitCode::kUsage,
          fmt::format("element {} of `{}` is {} in {}, which {} does not hold",
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
    throw Error(ExitCode::kUsage,
                fmt::format("element {} of `{}` would be element [{}] of {}, which has the shape "
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
