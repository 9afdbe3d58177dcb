#include "generate/engines.h"

#include "tensor/encode.h"

namespace shardinit {

void DecodeInPlace(DType dtype, std::span<double> numbers) {
  // Encoded numbers take no more bytes than doubles: decoding from the last one on overwrites none
  // that is still needed.
  const auto* const bytes = reinterpret_cast<const uint8_t*>(numbers.data());
  const auto size = static_cast<size_t>(InfoOf(dtype).bytes);
  for (size_t i = numbers.size(); i-- > 0;) numbers[i] = Decode(bytes + i * size, dtype);
}

const FillEngine& FillEngineOf(const Engine& engine) {
  static const FillEngine kNone;
  for (const FillEngine* row : {&kFillJaxThreefry, &kFillTorchCpu}) {
    if (row->engine == &engine) return *row;
  }
  return kNone;
}

}  // namespace shardinit
