// Computes the values of an expression over elements, `init: {expr: …}`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "expr/program.h"
#include "generate/engines.h"
#include "graph/engines/engines.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

const Sampler& SamplerOf(Draw draw) {
  static const Sampler kNormal = MakeNormal(0, 1);
  static const Sampler kUniform = MakeUniform(0, 1);
  static const Sampler kBits = BitsSampler{};
  return draw == Draw::kNormal ? kNormal : draw == Draw::kUniform ? kUniform : kBits;
}

// The numbers of one call in an expression. It is safe to use from several threads.
class PlacedNumbers {
 public:
  PlacedNumbers(const Program::PlacedCall& call, const Stream& stream)
      : called_(FillEngineOf(EngineOf(call)).numbers(call, stream)) {}

  // The numbers that one thread has at hand, since callers ask for neighbours one after another.
  struct Window {
    uint64_t first = 0;
    std::vector<double> values = {};
  };

  // Sets out[i] to number element[i], or to NaN if there is none.
  void Get(const double* element, size_t count, Window& window, double* out) const {
    const auto exists = [&](double e) {
      return e >= 0 && e < static_cast<double>(called_.elements) && std::trunc(e) == e;
    };
    const auto has = [&](uint64_t e) {
      return e >= window.first && e - window.first < window.values.size();
    };
    for (size_t i = 0; i < count; ++i) {
      if (!exists(element[i])) {
        out[i] = std::numeric_limits<double>::quiet_NaN();
        continue;
      }
      const auto at = static_cast<uint64_t>(element[i]);
      if (!has(at)) {
        // The window gets all numbers that are left, if they are near; else those that follow one
        // another.
        uint64_t low = at, high = at;
        for (size_t k = i; k < count; ++k) {
          if (!exists(element[k])) continue;
          low = std::min(low, static_cast<uint64_t>(element[k]));
          high = std::max(high, static_cast<uint64_t>(element[k]));
        }
        if (high - low >= called_.longest_window) {
          low = high = at;
          for (size_t k = i + 1; k < count && element[k] == element[k - 1] + 1; ++k) {
            if (exists(element[k])) ++high;
          }
        }
        window.first = low;
        window.values.resize(static_cast<size_t>(high - low + 1));
        called_.make(low, window.values);
      }
      out[i] = window.values[at - window.first];
    }
  }

 private:
  CalledNumbers called_;
};

class ExpressionFiller final : public Filler {
 public:
  ExpressionFiller(const Expression& expression, const Tensor& tensor)
      : program_(expression.program),
        path_(tensor.path),
        dtype_(tensor.dtype),
        shape_(tensor.shape),
        stream_(tensor.stream) {
    for (const Program::PlacedCall& call : program_->placed) placed_.emplace_back(call, stream_);
  }

  // Throws Error (kUsage) for an element that is not a number, or that the tensor's type cannot
  // hold.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    std::vector<double> slots(static_cast<size_t>(program_->slots) * kTile);
    for (const Program::Literal& literal : program_->literals) {
      std::fill_n(&slots[literal.slot * kTile], kTile, literal.value);
    }
    std::vector<PlacedNumbers::Window> windows(placed_.size());
    auto* at = static_cast<uint8_t*>(out);
    for (int64_t made; count > 0; first += made, count -= made) {
      made = std::min(count, kTile);
      FillIndices(runs, first, made, slots.data());
      FillDraws(runs, first, made, slots.data());
      size_t call = 0;
      for (size_t k = 0; k <= program_->code.size(); ++k) {
        for (; call < placed_.size() && program_->placed[call].before == k; ++call) {
          const Program::PlacedCall& c = program_->placed[call];
          placed_[call].Get(&slots[c.element * kTile], static_cast<size_t>(made), windows[call],
                            &slots[c.out * kTile]);
        }
        if (k == program_->code.size()) break;
        const Program::Instruction& i = program_->code[k];
        Apply(i.op, &slots[i.a * kTile], &slots[i.b * kTile], &slots[i.c * kTile],
              &slots[i.out * kTile], static_cast<size_t>(made));
      }
      Store(runs, first, made, &slots[program_->result * kTile], at);
      at += made * InfoOf(dtype_).bytes;
    }
  }

 private:
  // Along the last dimension an index counts up; the others stay the same.
  void FillIndices(const Runs& runs, int64_t first, int64_t count, double* slots) const {
    if (program_->indices.empty()) return;
    const int rank = static_cast<int>(shape_.size());
    Shape at(shape_.size());  // indices in the tensor
    for (int64_t done = 0; done < count;) {
      const auto [linear, in_run] = NeighboursAt(runs, first + done, count - done);
      int64_t rest = linear;
      for (int d = rank; d-- > 0; rest /= shape_[d]) at[d] = rest % shape_[d];
      const int64_t left = rank == 0 ? 1 : shape_[rank - 1] - at[rank - 1];
      const int64_t length = std::min(in_run, left);
      for (const Program::Index& index : program_->indices) {
        double* out = slots + index.slot * kTile + done;
        const int d = index.dimension;
        if (d != Program::kLinear && d != rank - 1) {
          std::fill_n(out, length, static_cast<double>(at[d]));
          continue;
        }
        const auto start = static_cast<double>(d == Program::kLinear ? linear : at[d]);
        for (int i = 0; i < static_cast<int>(length); ++i) out[i] = start + i;
      }
      done += length;
    }
  }

  void FillDraws(const Runs& runs, int64_t first, int64_t count, double* slots) const {
    std::array<float, kTile> drawn;
    for (size_t number = 0; number < program_->draws.size(); ++number) {
      const auto [slot, draw] = program_->draws[number];
      DrawRuns(runs, SamplerOf(draw), DrawOf(stream_, static_cast<uint32_t>(number)), first, count,
               DType::f32, drawn.data());
      double* out = slots + slot * kTile;
      if (draw == Draw::kBits) {
        for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<uint32_t>(drawn[i]);
      } else {
        for (int64_t i = 0; i < count; ++i) out[i] = drawn[i];
      }
    }
  }

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
    Shape at(shape_.size());
    for (size_t d = shape_.size(); d-- > 0; linear /= shape_[d]) at[d] = linear % shape_[d];
    const DTypeInfo& info = InfoOf(dtype_);
    throw Error(ExitCode::kUsage,
                fmt::format("element [{}] of `{}` is {}, {}", fmt::join(at, ", "), path_, value,
                            info.is_float()
                                ? fmt::format("which {} does not hold", info.name)
                                : fmt::format("but {} holds {}", info.name, WhatItHolds(dtype_))),
                fmt::format("its initializer is {{expr: \"{}\"}}", program_->text));
  }

  std::shared_ptr<const Program> program_;
  std::string path_;
  DType dtype_;
  Shape shape_;
  Stream stream_;
  std::vector<PlacedNumbers> placed_;  // one for each call of the program
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const Expression& distribution, const Tensor& tensor) {
  return std::make_unique<ExpressionFiller>(distribution, tensor);
}

}  // namespace shardinit
