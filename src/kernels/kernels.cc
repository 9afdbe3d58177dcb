#include "kernels/kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/number.h"
#include "kernels/backend.h"
#include "kernels/targets.h"
#include "kernels/torch_cpu.h"
#include "rng/coefficients.h"
#include "rng/engines.h"
#include "rng/jax_threefry.h"
#include "rng/mt19937.h"
#include "rng/philox4x32.h"
#include "rng/threefry2x32.h"
#include "rng/torch_coefficients.h"
#include "tensor/encode.h"

#define HWY_TARGET_INCLUDE "kernels/fill-inl.h"
#include <hwy/foreach_target.h>

#include "kernels/fill-inl.h"

namespace shardinit::kernels {

void Fill(const Sampler& sampler, Stream stream, uint64_t first, size_t count, DType dtype,
          void* out) {
  FillRows(sampler, stream, first, 0, 1, count, dtype, out);
}

void FillRows(const Sampler& sampler, Stream stream, uint64_t first, uint64_t stride, size_t rows,
              size_t count, DType dtype, void* out) {
  Check(InfoOf(dtype).is_float(), "random numbers are floats");
  Check(stream.engine->sample != nullptr, "an engine of whole tensors");
  Check(dtype == DType::f32 || !std::holds_alternative<BitsSampler>(sampler), "bits are f32");
  const Job job{sampler, stream, first, stride, rows, count, dtype, static_cast<uint8_t*>(out)};
  ActiveBackend().run(job);
}

void RunReference(const Job& job) {
  std::array<float, 512> values;
  uint8_t* out = job.out;
  for (size_t row = 0; row < job.rows; ++row) {
    for (size_t done = 0; done < job.count;) {
      const size_t n = std::min(values.size(), job.count - done);
      job.stream.engine->sample(job.sampler, job.stream, job.first + row * job.stride + done, n,
                                values.data());
      for (size_t i = 0; i < n; ++i, out += InfoOf(job.dtype).bytes) {
        Encode(values[i], job.dtype, out);
      }
      done += n;
    }
  }
}

}  // namespace shardinit::kernels
