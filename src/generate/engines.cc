#include "generate/engines.h"

#include <fmt/format.h>

#include "base/error.h"
#include "graph/engines/jax_threefry.h"
#include "kernels/kernels.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

CalledNumbers JaxNumbersOf(const Program::PlacedCall& call, const Stream&) {
  const auto make = [sampler = JaxSamplerOf(call), stream = JaxStreamOf(call)](
                        uint64_t first, std::span<double> numbers) {
    kernels::Fill(sampler, stream, first, numbers.size(), DType::f32, numbers.data());
    DecodeInPlace(std::holds_alternative<BitsSampler>(sampler) ? DType::u32 : DType::f32, numbers);
  };
  // JAX's numbers cost the same at any position.
  return {.elements = uint64_t{1} << 53, .longest_window = 1 << 10, .make = make};
}

}  // namespace

extern constinit const FillEngine kFillJaxThreefry = {.engine = &kJaxThreefry,
                                                      .numbers = JaxNumbersOf};

void ThrowNoMemory(const OrthogonalSize& size) {
  throw Error(ExitCode::kWorld,
              fmt::format("cannot get {:.2g} bytes of memory for an orthogonal matrix of {} × {}",
                          size.bytes, size.rows, size.columns),
              "`shardinit plan` shows what each takes");
}

void DecodeInPlace(DType dtype, std::span<double> numbers) {
  // Encoded numbers take no more bytes than doubles. Decoding from the last number on overwrites
  // none that is still needed.
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
