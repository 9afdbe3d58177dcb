#include "tensor/numbers.h"

#include <algorithm>

namespace shardinit {

int NumberCount(DType dtype) { return dtype == DType::c64 ? 2 : InfoOf(dtype).numbers; }

DType NumberType(DType dtype) { return dtype == DType::c64 ? DType::f32 : dtype; }

int NumberBytes(DType type) { return InfoOf(type).numbers > 1 ? 1 : InfoOf(type).bytes; }

void SeparateNumbers(DType dtype, const uint8_t* elements, int64_t count, uint8_t* out) {
  const DTypeInfo& info = InfoOf(dtype);
  if (info.numbers == 1) {
    std::copy_n(elements, count * info.bytes, out);
    return;
  }
  const int bits = 8 * info.bytes / info.numbers;
  for (int64_t i = 0; i < count; ++i, elements += info.bytes) {
    uint32_t element = 0;
    for (int b = 0; b < info.bytes; ++b) element |= uint32_t{elements[b]} << (8 * b);
    for (int n = 0; n < info.numbers; ++n, element >>= bits) {
      *out++ = static_cast<uint8_t>(element & ((1u << bits) - 1));
    }
  }
}

}  // namespace shardinit
