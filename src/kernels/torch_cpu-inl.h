// Generates PyTorch's numbers for one instruction set. MT19937's recurrence computes many words at
// a time. The words are tempered into a buffer, converted to numbers and encoded to their place.
// fill-inl.h includes this file last, because it needs the others.
//
// Without a fused multiply-add, the readable reference generates the numbers.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

#if HWY_HAVE_SCALABLE

int RunTorch(const TorchJob& job) { return N_NEON::RunTorch(job); }

#elif HWY_TARGET == HWY_SCALAR || !HWY_NATIVE_FMA

int RunTorch(const TorchJob& job) { return RunTorchReference(job); }

#else

namespace torch {

// A group has two halves of 8. A vector has at most 16 lanes: one half of each of two groups.
using F = wide::Floats<V1>;
using U = wide::Words<U1>;
using torch_samplers::NormalsOf;

constexpr size_t kChunk = 2048;  // numbers generated at a time, in whole groups
constexpr size_t kSlack = 16;    // Vectors may access this many elements beyond an array.

// Does the same as mt19937::Extend, with vectors.
void Extend(uint32_t* out, size_t count) {
  const D32 d;
  const size_t lanes = hn::Lanes(d);
  const auto upper = hn::Set(d, 0x80000000u), lower = hn::Set(d, 0x7FFFFFFFu), one = hn::Set(d, 1),
             matrix = hn::Set(d, 0x9908b0dfu);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const uint32_t* x = out + i - mt19937::kState;
    const auto next = hn::LoadU(d, x + 1);
    const auto mixed = hn::OrAnd(hn::And(next, lower), hn::LoadU(d, x), upper);
    const auto odd = hn::IfThenElseZero(hn::TestBit(next, one), matrix);
    hn::StoreU(hn::Xor3(hn::LoadU(d, x + mt19937::kMiddle), hn::ShiftRight<1>(mixed), odd), d,
               out + i);
  }
  mt19937::Extend(out + i, count - i);
}

HWY_INLINE U1 Temper(U1 y) {
  const D32 d;
  y = hn::Xor(y, hn::ShiftRight<11>(y));
  y = hn::Xor(y, hn::And(hn::ShiftLeft<7>(y), hn::Set(d, 0x9d2c5680u)));
  y = hn::Xor(y, hn::And(hn::ShiftLeft<15>(y), hn::Set(d, 0xefc60000u)));
  return hn::Xor(y, hn::ShiftRight<18>(y));
}

// Writes words position … position + count - 1 of the stream, tempered.
void Words(const Stream& stream, uint64_t position, size_t count, uint32_t* out) {
  const D32 d;
  Mt19937& words = Mt19937At(static_cast<uint32_t>(stream.key), position, Extend);
  while (count > 0) {
    size_t some;
    const uint32_t* from = words.At(position, &some);
    some = std::min(some, count);
    for (size_t i = 0; i < some; i += hn::Lanes(d)) {
      hn::StoreU(Temper(hn::LoadU(d, from + i)), d, out + i);
    }
    position += some, count -= some, out += some;
  }
}

// Generates the numbers of `groups` groups. Writes two groups at a time if vectors hold two.
HWY_INLINE void MakeGroups(const torch_cpu::Normal& normal, const uint32_t* words, size_t groups,
                           float* out) {
  const DF d;
  const D32 du;
  const float mean = static_cast<float>(normal.mean), std = static_cast<float>(normal.std);
#if HWY_MAX_BYTES >= 64
  for (size_t g = 0; g < groups; g += 2, words += 32, out += 32) {
    const auto a = hn::LoadU(du, words), b = hn::LoadU(du, words + 16);
    const auto made = NormalsOf<F>(mean, std, U(hn::ConcatLowerLower(du, b, a)),
                                   U(hn::ConcatUpperUpper(du, b, a)));
    hn::StoreU(hn::ConcatLowerLower(d, made.second.v, made.first.v), d, out);
    hn::StoreU(hn::ConcatUpperUpper(d, made.second.v, made.first.v), d, out + 16);
  }
#else
  static_assert(hn::MaxLanes(d) <= 8);
  for (size_t g = 0; g < groups; ++g, words += 16, out += 16) {
    for (size_t j = 0; j < 8; j += hn::Lanes(d)) {
      const auto made =
          NormalsOf<F>(mean, std, U(hn::LoadU(du, words + j)), U(hn::LoadU(du, words + 8 + j)));
      hn::StoreU(made.first.v, d, out + j);
      hn::StoreU(made.second.v, d, out + 8 + j);
    }
  }
#endif
}

template <class Encoder>
HWY_INLINE void EncodeValues(const float* values, size_t count, DType dtype, uint8_t* out) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto a = hn::LoadU(d, values + i), b = hn::LoadU(d, values + i + lanes);
    Encoder::Store(hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a), out + i * Encoder::kBytes);
  }
  for (; i < count; ++i) Encode(values[i], dtype, out + i * Encoder::kBytes);
}

void Store(const float* values, size_t count, DType dtype, uint8_t* out) {
  if (dtype == DType::bf16) return EncodeValues<EncodeBf16>(values, count, dtype, out);
  if (dtype == DType::f16) return EncodeValues<EncodeF16>(values, count, dtype, out);
  std::memcpy(out, values, count * sizeof(float));
}

// Generates elements of a tensor, at most kChunk at a time.
class Maker {
 public:
  explicit Maker(const torch_cpu::Drawn& drawn) : drawn_(drawn), stream_(drawn.stream) {}

  int Make(const torch_cpu::Uniform& u, uint64_t first, size_t count) {
    const DF d;
    Words(stream_, stream_.position + first, count, words_);
    const auto low32 = static_cast<float>(u.low);
    const float span = static_cast<float>(u.high) - low32;
    const auto low = hn::Set(d, low32);
    const torch_cpu::Interval top = Bounds(u.high);
    const auto top_first = hn::Set(d, top.first), top_last = hn::Set(d, top.last);
    for (size_t i = 0; i < count; i += hn::Lanes(d)) {
      const F u24 = torch_samplers::Uniform24<F>(U(hn::LoadU(D32(), words_ + i)));
      const auto value = Fma(u24, F(span), F(low32)).v;
      const auto is_high = hn::And(hn::Ge(value, top_first), hn::Le(value, top_last));
      hn::StoreU(hn::IfThenElse(is_high, low, value), d, values_ + i);
    }
    begin_ = values_;
    return 1;
  }

  int Make(const torch_cpu::Normal& n, uint64_t first, size_t count) {
    MakeNormal(n, stream_.position, first, count);
    return 1;
  }

  int Make(const torch_cpu::TruncatedNormal& t, uint64_t first, size_t count) {
    const torch_cpu::Normal normal{t.mean, t.std};
    MakeNormal(normal, stream_.position, first, count);
    const float low = Bounds(t.low).first, high = high_bound(t);
    const auto is_outside = [&](float value) { return value < low || value > high; };
    size_t outside = 0;
    for (size_t i = 0; i < count; ++i) {
      outside_[outside] = static_cast<uint16_t>(i);
      outside += is_outside(begin_[i]) ? 1 : 0;
    }
    int rounds = 1;
    const uint64_t length = torch_cpu::StreamAfter(drawn_).position - stream_.position;
    for (uint64_t position = stream_.position + length; outside > 0; position += length, ++rounds) {
      uint64_t made = ~uint64_t{0};  // the group in group_
      size_t still = 0;
      for (size_t k = 0; k < outside; ++k) {
        const uint64_t element = first + outside_[k];
        const auto [group, j] = PlaceOf(element);
        if (group != made) {
          Words(stream_, position + group, 16, words_);
          MakeGroups(normal, words_, 1, group_);
          made = group;
        }
        begin_[outside_[k]] = group_[j];
        outside_[still] = outside_[k];
        still += is_outside(group_[j]) ? 1 : 0;
      }
      outside = still;
    }
    return rounds;
  }

  const float* values() const { return begin_; }

 private:
  float high_bound(const torch_cpu::TruncatedNormal& t) { return Bounds(t.high).last; }

  torch_cpu::Interval Bounds(double bound) const {
    return torch_cpu::RoundedTo(drawn_.dtype, bound);
  }

  // Returns where the words of the element's group begin, and the element's number in the group.
  std::pair<uint64_t, size_t> PlaceOf(uint64_t element) const {
    const uint64_t n = drawn_.elements;
    if (n % 16 != 0 && element >= n - 16) return {WordsBeforeAnew(drawn_), element - (n - 16)};
    return {element / 16 * 16, element % 16};
  }

  // Generates elements at begin_[0] ..., at most kChunk - 16.
  void MakeNormal(const torch_cpu::Normal& n, uint64_t position, uint64_t first, size_t count) {
    const uint64_t size = drawn_.elements;
    const uint64_t end = first + count, anew = size % 16 != 0 ? size - 16 : size;
    const uint64_t group = first / 16 * 16;
    begin_ = values_ + (first - group);
    if (first < anew) {
      const size_t groups = (std::min(end, anew) - group + 15) / 16;
      Words(stream_, position + group, 16 * groups, words_);
      MakeGroups(n, words_, groups, values_);
    }
    if (end > anew) {
      Words(stream_, position + WordsBeforeAnew(drawn_), 16, words_);
      MakeGroups(n, words_, 1, group_);
      const uint64_t from = std::max(first, anew);
      std::copy_n(group_ + (from - anew), end - from, begin_ + (from - first));
    }
  }

  const torch_cpu::Drawn& drawn_;
  const Stream& stream_;
  float* begin_ = nullptr;
  HWY_ALIGN uint32_t words_[kChunk + 2 * kSlack];
  HWY_ALIGN float values_[kChunk + 2 * kSlack];
  HWY_ALIGN float group_[16 + kSlack];
  uint16_t outside_[kChunk + 1];
};

}  // namespace torch

int RunTorch(const TorchJob& job) {
  torch::Maker maker(job.drawn);
  const auto bytes = static_cast<size_t>(InfoOf(job.drawn.dtype).bytes);
  int rounds = 0;
  for (size_t done = 0; done < job.count;) {
    // The chunk ends where a group begins, or at the end of the job.
    const uint64_t first = job.first + done;
    const size_t count =
        std::min(job.count - done, torch::kChunk - 16 - static_cast<size_t>(first % 16));
    rounds = std::max(rounds,
                      std::visit([&](const auto& draw) { return maker.Make(draw, first, count); },
                                 job.drawn.draw));
    torch::Store(maker.values(), count, job.drawn.dtype, job.out + done * bytes);
    done += count;
  }
  return rounds;
}

#endif

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace shardinit::kernels::HWY_NAMESPACE {
[[maybe_unused]] const bool kTorchEntered =
    (BackendOf(HWY_TARGET).run_torch = &RunTorch) != nullptr;
}  // namespace shardinit::kernels::HWY_NAMESPACE
