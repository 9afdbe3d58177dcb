#include "kernels/kernels.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/job.h"
#include "kernels/targets.h"
#include "rng/coefficients.h"
#include "rng/philox4x32.h"
#include "rng/reference.h"
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
  Check(dtype == DType::f32 || !std::holds_alternative<BitsSampler>(sampler), "bits are f32");
  ActiveBackend().run(
      {sampler, stream, first, stride, rows, count, dtype, static_cast<uint8_t*>(out)});
}

}  // namespace shardinit::kernels
