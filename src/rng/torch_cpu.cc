#include "rng/torch_cpu.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

#include "expr/elementary.h"
#include "rng/engines.h"
#include "rng/mt19937.h"
#include "rng/torch-samplers-inl.h"
#include "tensor/encode.h"

namespace shardinit {
namespace torch_cpu {
namespace {

constexpr double kTwoPi64 = 0x1.921fb54442d18p+2;

double Uniform53(const Stream& stream, uint64_t position) {
  const uint64_t bits = TwoWordsAt(stream, position) & ((uint64_t{1} << 53) - 1);
  return static_cast<double>(bits) * 0x1p-53;
}

// Returns number j of the group of 16 whose words begin at `position`.
double InGroup(const Normal& normal, const Stream& stream, uint64_t position, uint64_t j) {
  const auto of_both = torch_samplers::NormalsOf<float>(
      static_cast<float>(normal.mean), static_cast<float>(normal.std),
      WordAt(stream, position + j % 8), WordAt(stream, position + j % 8 + 8));
  return j < 8 ? of_both.first : of_both.second;
}

// Returns the same number in f64, with two words for each number.
double InWideGroup(const Normal& normal, const Stream& stream, uint64_t position, uint64_t j) {
  const double u1 = 1.0 - Uniform53(stream, position + 2 * (j % 8));
  const double u2 = Uniform53(stream, position + 2 * (j % 8 + 8));
  const double radius = std::sqrt(-2.0 * Apply(ElementOp::kLog, u1));
  const double z = radius * Apply(j < 8 ? ElementOp::kCos : ElementOp::kSin, kTwoPi64 * u2);
  return std::fma(z, normal.std, normal.mean);
}

// Returns one of the two normal numbers computed from four words.
double OfPair(const Stream& stream, uint64_t position, bool second) {
  const double a = Uniform53(stream, position), b = Uniform53(stream, position + 2);
  const double radius = std::sqrt(-2.0 * Apply(ElementOp::kLog1p, -b));
  const double angle = kTwoPi64 * a;
  return radius * Apply(second ? ElementOp::kSin : ElementOp::kCos, angle);
}

double PairedNumber(const Normal& normal, const Stream& stream, uint64_t i) {
  double z;
  if (stream.spare != kNoSpare && i == 0) {
    z = OfPair(stream, stream.spare, true);
  } else {
    if (stream.spare != kNoSpare) --i;
    z = OfPair(stream, stream.position + i / 2 * 4, i % 2 != 0);
  }
  return std::fma(z, normal.std, normal.mean);
}

double Element(const Normal& normal, const Drawn& drawn, uint64_t i) {
  double value;
  if (!IsInGroups(drawn)) {
    value = PairedNumber(normal, drawn.stream, i);
  } else {
    const bool anew = drawn.elements % kGroup != 0 && i >= drawn.elements - kGroup;
    const uint64_t group =
        anew ? WordsBeforeAnew(drawn) : i / kGroup * kGroup * WordsEach(drawn.dtype);
    const uint64_t j = anew ? i - (drawn.elements - kGroup) : i % kGroup;
    value = (drawn.dtype == DType::f64 ? InWideGroup : InGroup)(normal, drawn.stream,
                                                                drawn.stream.position + group, j);
  }
  return Rounded(value, drawn.dtype);
}

double Element(const Uniform& uniform, const Drawn& drawn, uint64_t i) {
  const Stream& stream = drawn.stream;
  double value;
  if (drawn.dtype == DType::f64) {
    value = std::fma(Uniform53(stream, stream.position + 2 * i), uniform.high - uniform.low,
                     uniform.low);
  } else {
    const float low = static_cast<float>(uniform.low), high = static_cast<float>(uniform.high);
    const float u = torch_samplers::Uniform24<float>(WordAt(stream, stream.position + i));
    value = Fma(u, high - low, low);
  }
  const double rounded = Rounded(value, drawn.dtype);
  return rounded == Rounded(uniform.high, drawn.dtype) ? Rounded(uniform.low, drawn.dtype)
                                                       : rounded;
}

double Element(const TruncatedNormal& t, const Drawn& drawn, uint64_t i) {
  const Normal normal{t.mean, t.std};
  const double low = Rounded(t.low, drawn.dtype), high = Rounded(t.high, drawn.dtype);
  for (Drawn round = drawn;; round.stream = StreamAfter(round, 1)) {
    const double value = Element(normal, round, i);
    if (value >= low && value <= high) return value;
  }
}

}  // namespace

uint32_t WordAt(const Stream& stream, uint64_t position) {
  size_t count;
  const auto seed = static_cast<uint32_t>(stream.key);
  return mt19937::Temper(*Mt19937At(seed, position, mt19937::Extend).At(position, &count));
}

uint64_t TwoWordsAt(const Stream& stream, uint64_t position) {
  return uint64_t{WordAt(stream, position)} << 32 | WordAt(stream, position + 1);
}

uint64_t IntegerAt(const Stream& stream, uint64_t i, uint64_t range) {
  const uint64_t first = stream.position;
  return (range < 1 << 28 ? WordAt(stream, first + i) : TwoWordsAt(stream, first + 2 * i)) % range;
}

std::vector<uint32_t> Permutation(const Stream& stream, uint32_t n) {
  std::vector<uint32_t> values(n);
  std::iota(values.begin(), values.end(), 0u);
  for (uint32_t i = 0; i + 1 < n; ++i) {
    std::swap(values[i], values[i + WordAt(stream, stream.position + i) % (n - i)]);
  }
  return values;
}

double Rounded(double value, DType dtype) {
  uint64_t bits = 0;
  EncodeNumber(value, dtype, &bits);
  return Decode(&bits, dtype);
}

double ElementOf(const Drawn& drawn, uint64_t element) {
  return std::visit([&](const auto& draw) { return Element(draw, drawn, element); }, drawn.draw);
}

Stream StreamAfter(const Drawn& drawn) { return StreamAfter(drawn, 1); }

Stream StreamAfter(const Drawn& drawn, int rounds) {
  Stream stream = drawn.stream;
  const uint64_t n = drawn.elements;
  if (std::holds_alternative<Uniform>(drawn.draw)) {
    stream.position += drawn.dtype == DType::f64 ? 2 * n : n;
  } else if (IsInGroups(drawn)) {
    const uint64_t words = WordsEach(drawn.dtype);
    stream.position += static_cast<uint64_t>(rounds) *
                       (n % kGroup == 0 ? words * n : WordsBeforeAnew(drawn) + words * kGroup);
  } else {
    for (int round = 0; round < rounds; ++round) {
      const uint64_t alone = stream.spare != kNoSpare ? n - 1 : n;
      stream.position += (alone + 1) / 2 * 4;
      if (n > 0) stream.spare = alone % 2 != 0 ? stream.position - 4 : kNoSpare;
    }
  }
  return stream;
}

Interval RoundedTo(DType dtype, double bound) {
  const double target = Rounded(bound, dtype);
  const auto center = static_cast<float>(target);
  if (dtype == DType::f32 || dtype == DType::f64) return {center, center};
  // Finds each end by bisection. Floats are ordered by their bits, and `outside` starts outside the
  // interval.
  const auto ordered = [](float x) {
    const auto bits = std::bit_cast<int32_t>(x);
    return bits < 0 ? std::numeric_limits<int32_t>::min() - int64_t{bits} : int64_t{bits};
  };
  const auto from_ordered = [](int64_t x) {
    return std::bit_cast<float>(
        static_cast<int32_t>(x < 0 ? std::numeric_limits<int32_t>::min() - x : x));
  };
  const auto end = [&](int64_t step) {
    int64_t inside = ordered(center), outside = inside;
    while (Rounded(from_ordered(outside), dtype) == target) outside += step, step *= 2;
    while (std::abs(outside - inside) > 1) {
      const int64_t middle = (inside + outside) / 2;
      (Rounded(from_ordered(middle), dtype) == target ? inside : outside) = middle;
    }
    return from_ordered(inside);
  };
  return {end(-1), end(1)};
}

bool IsOneRound(const Drawn& drawn) {
  const auto* const cut_off = std::get_if<TruncatedNormal>(&drawn.draw);
  if (cut_off == nullptr) return true;
  const TruncatedNormal& t = *cut_off;
  // The bounds are sqrt(-2 ln 2^-24) = 5.77 and sqrt(-2 ln 2^-53) = 8.57, increased by more than
  // rounding can add.
  const bool wide = !IsInGroups(drawn) || drawn.dtype == DType::f64;
  const double reach = (wide ? 8.58 : 5.78) * t.std;
  return t.low < t.mean - reach && t.mean + reach < t.high;
}

}  // namespace torch_cpu

extern const Engine kTorchCpu = {
    .name = "torch_cpu/2.13/avx2",
    .source = "PyTorch 2.13: ATen/native/cpu/DistributionTemplates.h, ATen/core/MT19937RNGEngine.h",
    .key = [](uint64_t seed, std::string_view) { return seed & 0xFFFFFFFF; },
    .sequential = true,
    .sample = nullptr,
    .framework = "PyTorch",
    .has_places = true,
    .short_name = "torch_cpu",
};

}  // namespace shardinit
