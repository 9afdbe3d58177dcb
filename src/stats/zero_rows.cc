#include "stats/zero_rows.h"

#include <algorithm>

#include "tensor/numbers.h"

namespace shardinit {

bool ZeroRows::AreZeros(const uint8_t* elements, int64_t count) const {
  if (dtype_ == DType::f8e8m0) return false;  // It has no zero.
  const DTypeInfo& info = InfoOf(dtype_);
  const int bytes = NumberBytes(dtype_);
  // -0 is also zero.
  const int sign = info.numbers > 1  ? 1 << (info.exponent_bits + info.mantissa_bits)
                   : info.is_float() ? 0x80
                                     : 0x100;
  for (int64_t i = 0; i < count; ++i, elements += bytes) {
    for (int b = 0; b + 1 < bytes; ++b) {
      if (elements[b] != 0) return false;
    }
    if ((elements[bytes - 1] & (sign - 1)) != 0) return false;
  }
  return true;
}

void ZeroRows::Add(const uint8_t* elements, int64_t count) {
  while (length_ > 0 && count > 0) {
    const int64_t within = at_ % length_;
    if (within == 0) {
      has_begun_ = true;
      open_ = true;
    }
    const int64_t part = std::min(count, length_ - within);
    open_ = open_ && AreZeros(elements, part);
    if (!has_begun_) head_ = open_;
    if (within + part == length_ && has_begun_ && open_) ++count_;
    elements += part * NumberBytes(dtype_);
    count -= part;
    at_ += part;
  }
}

void ZeroRows::Append(const ZeroRows& next) {
  if (length_ == 0) return;
  // The row that is open here continues in the head of `next`.
  const int64_t within = at_ % length_;
  if (within > 0) {
    open_ = open_ && next.head_;
    const bool ends = next.has_begun_ || next.at_ % length_ == 0;
    if (ends && open_) ++count_;
  }
  count_ += next.count_;
  if (next.has_begun_) open_ = next.open_;
  at_ = next.at_;
}

}  // namespace shardinit
