// Computes the values of an expression over elements, `init: {expr: …}`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "generate/evaluator.h"
#include "generate/filler.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

class ExpressionFiller final : public Filler {
 public:
  ExpressionFiller(const Expression& expression, const Tensor& tensor)
      : evaluator_(expression.program, tensor),
        text_(expression.program->text),
        takes_sources_(!expression.program->sources.empty()),
        path_(tensor.path()),
        dtype_(tensor.dtype()),
        shape_(tensor.shape()) {}

  bool wants_long_stretches() const override { return takes_sources_; }

  // Throws Error as Evaluator does, and kUsage for an element that is not a number, or that the
  // tensor's type cannot hold.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    Evaluator::State state = evaluator_.Begin();
    auto* at = static_cast<uint8_t*>(out);
    for (int64_t gathered = 0, made; count > 0; first += made, count -= made) {
      if (takes_sources_ && gathered == 0) {
        gathered = std::min(count, kGathered);
        evaluator_.Gather(runs, first, gathered, state);
      }
      made = std::min(takes_sources_ ? gathered : count, kTile);
      Store(runs, first, made, evaluator_.Evaluate(runs, first, made, state), at);
      at += made * InfoOf(dtype_).bytes;
      gathered -= made;
    }
  }

 private:
  void Store(const Runs& runs, int64_t first, int64_t count, const double* values,
             uint8_t* out) const {
    const DTypeInfo& info = InfoOf(dtype_);
    bool bad = false;
    if (dtype_ == DType::f64) {
      for (int64_t i = 0; i < count; ++i) bad |= !std::isfinite(values[i]);
      std::memcpy(out, values, static_cast<size_t>(count) * sizeof(double));
    } else if (info.is_float()) {
      std::array<float, kTile> rounded;
      const float largest = LargestRounded(dtype_);
      for (int64_t i = 0; i < count; ++i) {
        rounded[i] = static_cast<float>(values[i]);
        bad |= !(std::fabs(rounded[i]) <= largest);
      }
      if (dtype_ == DType::f32) {
        std::memcpy(out, rounded.data(), static_cast<size_t>(count) * sizeof(float));
      } else {
        for (int64_t i = 0; i < count; ++i) Encode(rounded[i], dtype_, out + i * info.bytes);
      }
    } else {
      const double lowest = LowestOf(dtype_), largest = LargestOf(dtype_);
      for (int64_t i = 0; i < count; ++i) {
        bad |= !(values[i] >= lowest && values[i] <= largest && std::trunc(values[i]) == values[i]);
      }
      for (int64_t i = 0; i < count && !bad; ++i)
        EncodeNumber(values[i], dtype_, out + i * info.bytes);
    }
    if (!bad) return;
    for (int64_t i = 0; i < count; ++i) {
      if (Holds(dtype_, values[i])) continue;
      Refuse(NeighboursAt(runs, first + i, 1).index, values[i]);
    }
  }

  [[noreturn]] void Refuse(int64_t linear, double value) const {
    const DTypeInfo& info = InfoOf(dtype_);
    throw Usage(
        fmt::format("element {} of `{}` is {}, {}", IndexInText(shape_, linear), path_, value,
                    info.is_float()
                        ? fmt::format("which {} cannot hold", info.name)
                        : fmt::format("but {} holds {}", info.name, DescribeRange(dtype_))),
        fmt::format("its initializer is {{expr: \"{}\"}}", text_));
  }

  const Evaluator evaluator_;
  const std::string text_;
  const bool takes_sources_;
  const std::string path_;
  const DType dtype_;
  const Shape shape_;
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const Expression& distribution, const Tensor& tensor) {
  return std::make_unique<ExpressionFiller>(distribution, tensor);
}

}  // namespace shardinit
