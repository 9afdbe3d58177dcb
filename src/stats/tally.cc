#include "stats/tally.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <map>
#include <mutex>

#include "tensor/encode.h"
#include "tensor/numbers.h"

namespace shardinit {
namespace {

constexpr int kDropped = 14;  // low bits of an f32 that do not affect its bin

size_t TableSize(DType dtype) {
  const int bytes = NumberBytes(dtype);
  return bytes <= 2 ? size_t{1} << (8 * bytes) : size_t{1} << (32 - kDropped);
}

double ValueOf(uint64_t bits, DType dtype) {
  uint8_t element[8];
  for (int i = 0; i < 8; ++i) element[i] = static_cast<uint8_t>(bits >> (8 * i));
  return Decode(element, dtype);
}

double Halfway(double a, double b) { return a / 2 + b / 2; }

// The values of a type of at most 16 bits, ascending.
struct EncodedValue {
  double value;
  uint32_t bits;
};
const std::vector<EncodedValue>& ValuesOf(DType dtype) {
  static std::mutex mutex;
  static std::map<DType, std::vector<EncodedValue>> known;
  const std::lock_guard lock(mutex);
  std::vector<EncodedValue>& values = known[dtype];
  if (!values.empty()) return values;
  for (size_t bits = 0; bits < TableSize(dtype); ++bits) {
    const double value = ValueOf(bits, dtype);
    if (std::isfinite(value)) values.push_back({value, static_cast<uint32_t>(bits)});
  }
  std::stable_sort(values.begin(), values.end(),
                   [](const EncodedValue& a, const EncodedValue& b) { return a.value < b.value; });
  return values;
}

// Eight sums alternate and are added up in a fixed order, however many the processor adds at once.
constexpr int kLanes = 8;

template <typename T, typename F>
double Sum(const T* values, int64_t count, F of) {
  double lanes[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += of(static_cast<double>(values[i + j]));
  }
  for (int64_t i = whole; i < count; ++i) lanes[i - whole] += of(static_cast<double>(values[i]));
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <typename T>
Moments MomentsOf(const T* values, int64_t count) {
  Moments moments;
  if (count == 0) return moments;
  const double sum = Sum(values, count, [](double x) { return x; });
  if (!std::isfinite(sum)) {
    std::vector<T> finite;
    std::copy_if(values, values + count, std::back_inserter(finite),
                 [](T x) { return std::isfinite(x); });
    // Otherwise all values are finite, and only their sum overflowed.
    if (std::ssize(finite) < count) return MomentsOf(finite.data(), std::ssize(finite));
  }
  moments.count = count;
  T low[kLanes], high[kLanes];
  std::fill_n(low, kLanes, values[0]);
  std::fill_n(high, kLanes, values[0]);
  for (int64_t i = 0; i < count / kLanes * kLanes; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      low[j] = std::min(low[j], values[i + j]);
      high[j] = std::max(high[j], values[i + j]);
    }
  }
  for (int64_t i = count / kLanes * kLanes; i < count; ++i) {
    low[0] = std::min(low[0], values[i]);
    high[0] = std::max(high[0], values[i]);
  }
  moments.min = *std::min_element(low, low + kLanes);
  moments.max = *std::max_element(high, high + kLanes);
  // A constant is its own mean, whatever the rounding of the sum.
  moments.mean = moments.min == moments.max ? moments.min : sum / static_cast<double>(count);
  moments.squares =
      Sum(values, count, [mean = moments.mean](double x) { return (x - mean) * (x - mean); });
  return moments;
}

template <typename T>
int64_t CountNans(const T* values, int64_t count) {
  return std::count_if(values, values + count, [](T x) { return std::isnan(x); });
}

}  // namespace

void Moments::Append(const Moments& next) {
  if (next.count == 0) return;
  const auto a = static_cast<double>(count), b = static_cast<double>(next.count);
  const double distance = next.mean - mean;
  squares += next.squares + distance * distance * (a * b / (a + b));
  mean += distance * (b / (a + b));
  count += next.count;
  min = std::min(min, next.min);
  max = std::max(max, next.max);
}

double Moments::std() const {
  return count == 0 ? 0 : std::sqrt(squares / static_cast<double>(count));
}

Tally::Tally(DType dtype) : dtype_(dtype), narrow_(NumberBytes(dtype) <= 2) {
  for (auto& table : counts_) table.resize(TableSize(dtype));
}

Moments Tally::Add(const void* elements, int64_t count) {
  int64_t* const even = counts_[0].data();
  int64_t* const odd = counts_[1].data();
  const auto count_by = [&](auto key) {
    int64_t i = 0;
    for (; i + 1 < count; i += 2) {
      ++even[key(i)];
      ++odd[key(i + 1)];
    }
    if (i < count) ++even[key(i)];
  };
  const auto f32_key = [](float value) { return std::bit_cast<uint32_t>(value) >> kDropped; };
  switch (NumberBytes(dtype_)) {
    case 1:
      count_by([in = static_cast<const uint8_t*>(elements)](int64_t i) { return in[i]; });
      return {};
    case 2:
      count_by([in = static_cast<const uint16_t*>(elements)](int64_t i) { return in[i]; });
      return {};
    default:
      break;
  }
  if (dtype_ == DType::f32) {
    const auto* in = static_cast<const float*>(elements);
    count_by([&](int64_t i) { return f32_key(in[i]); });
    const Moments moments = MomentsOf(in, count);
    if (moments.count < count) wide_nans_ += CountNans(in, count);
    return moments;
  }
  std::vector<double> values(static_cast<size_t>(count));
  const auto* in = static_cast<const uint8_t*>(elements);
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = Decode(in + i * InfoOf(dtype_).bytes, dtype_);
  }
  // A finite value beyond the range of f32 counts as the largest f32.
  constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
  count_by([&](int64_t i) {
    const double value = values[static_cast<size_t>(i)];
    return f32_key(
        static_cast<float>(std::isfinite(value) ? std::clamp(value, -kMost, kMost) : value));
  });
  const Moments moments = MomentsOf(values.data(), count);
  if (moments.count < count) wide_nans_ += CountNans(values.data(), count);
  return moments;
}

void Tally::Merge(const Tally& other) {
  wide_nans_ += other.wide_nans_;
  for (size_t t = 0; t < counts_.size(); ++t) {
    for (size_t i = 0; i < counts_[t].size(); ++i) counts_[t][i] += other.counts_[t][i];
  }
}

int64_t Tally::count() const {
  int64_t count = 0;
  for (size_t key = 0; key < counts_[0].size(); ++key) count += CountOf(key);
  return count;
}

int64_t Tally::nans() const {
  if (!narrow_) return wide_nans_;
  int64_t count = 0;
  for (size_t key = 0; key < counts_[0].size(); ++key) {
    if (CountOf(key) > 0 && std::isnan(ValueOf(key, dtype_))) count += CountOf(key);
  }
  return count;
}

std::vector<Bin> Tally::Bins() const {
  std::vector<Bin> bins;
  if (!narrow_) {
    // The bits of negative numbers ascend as the numbers descend.
    const auto size = static_cast<uint32_t>(counts_[0].size());
    const uint32_t half = size / 2, infinity = 0x7F800000u >> kDropped;
    for (uint32_t i = 0; i < 2 * infinity; ++i) {
      const uint32_t key = i < infinity ? half + infinity - 1 - i : i - infinity;
      if (CountOf(key) == 0) continue;
      const auto least = std::bit_cast<float>(key << kDropped);
      const auto most = std::bit_cast<float>((key << kDropped) | ((1u << kDropped) - 1));
      const float low = std::min(least, most), high = std::max(least, most);
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      bins.push_back({low, high, Halfway(std::nextafter(low, -kInfinity), low),
                      Halfway(high, std::nextafter(high, kInfinity)), CountOf(key)});
    }
    return bins;
  }
  const std::vector<EncodedValue>& values = ValuesOf(dtype_);
  for (size_t i = 0; i < values.size();) {
    Bin bin{values[i].value, values[i].value, -std::numeric_limits<double>::infinity(),
            std::numeric_limits<double>::infinity(), 0};
    if (i > 0) bin.from = Halfway(values[i - 1].value, bin.lowest);
    // 0 and -0 are the same value.
    for (; i < values.size() && values[i].value == bin.lowest; ++i)
      bin.count += CountOf(values[i].bits);
    if (i < values.size()) bin.to = Halfway(bin.highest, values[i].value);
    if (bin.count > 0) bins.push_back(bin);
  }
  return bins;
}

Moments MomentsOf(std::span<const Bin> bins) {
  Moments moments;
  for (const Bin& bin : bins) {
    moments.Append({bin.count, bin.lowest, 0, bin.lowest, bin.lowest});
  }
  return moments;
}

double Quantile(std::span<const Bin> bins, double part) {
  int64_t total = 0;
  for (const Bin& bin : bins) total += bin.count;
  const double wanted = std::max(1.0, std::ceil(part * static_cast<double>(total)));
  double before = 0;
  for (const Bin& bin : bins) {
    const auto count = static_cast<double>(bin.count);
    if (before + count >= wanted) {
      // A bin that contains 0 also contains numbers smaller than any that models have.
      if (bin.lowest <= 0 && bin.highest >= 0) return 0;
      return bin.lowest + (bin.highest - bin.lowest) * ((wanted - before) / count);
    }
    before += count;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace shardinit
