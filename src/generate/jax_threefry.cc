// Makes the numbers of jax_threefry that an expression takes by key.
#include "graph/engines/jax_threefry.h"

#include "generate/engines.h"
#include "kernels/kernels.h"

namespace shardinit {
namespace {

CalledNumbers JaxNumbersOf(const Program::PlacedCall& call, const Stream&) {
  const auto make = [sampler = JaxSamplerOf(call), stream = JaxStreamOf(call)](
                        uint64_t first, std::span<double> numbers) {
    kernels::Fill(sampler, stream, first, numbers.size(), DType::f32, numbers.data());
    DecodeInPlace(std::holds_alternative<BitsSampler>(sampler) ? DType::u32 : DType::f32, numbers);
  };
  // JAX's numbers cost the same wherever they are.
  return {.elements = uint64_t{1} << 53, .longest_window = 1 << 10, .make = make};
}

}  // namespace

extern constinit const FillEngine kFillJaxThreefry = {.engine = &kJaxThreefry,
                                                      .numbers = JaxNumbersOf};

}  // namespace shardinit
