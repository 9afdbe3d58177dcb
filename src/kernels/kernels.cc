#include "kernels/kernels.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
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
namespace {

HWY_EXPORT(RunJob);

// Those this file was compiled for and this CPU has, whatever is forced now. Where every CPU has
// vectors there is no scalar code.
std::vector<int64_t> AllTargets() {
  static const std::vector<int64_t> targets = [] {
    std::vector<int64_t> all = hwy::SupportedAndGeneratedTargets();
    if ((HWY_TARGETS & HWY_SCALAR) != 0 && all.back() != HWY_SCALAR) all.push_back(HWY_SCALAR);
    return all;
  }();
  return targets;
}

}  // namespace

void Fill(const Sampler& sampler, Stream stream, uint64_t first, size_t count, DType dtype,
          void* out) {
  FillRows(sampler, stream, first, 0, 1, count, dtype, out);
}

void FillRows(const Sampler& sampler, Stream stream, uint64_t first, uint64_t stride, size_t rows,
              size_t count, DType dtype, void* out) {
  Check(InfoOf(dtype).is_float(), "random numbers are floats");
  Check(dtype == DType::f32 || !std::holds_alternative<BitsSampler>(sampler), "bits are f32");
  HWY_DYNAMIC_DISPATCH(RunJob)
  ({sampler, stream, first, stride, rows, count, dtype, static_cast<uint8_t*>(out)});
}

std::vector<std::string> Targets() {
  std::vector<std::string> names;
  for (const int64_t target : AllTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string ActiveTarget() { return hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()); }

bool ForceTarget(std::string_view name) {
  AllTargets();  // Before anything is forced.
  if (name.empty()) {
    hwy::SetSupportedTargetsForTest(0);
    return true;
  }
  for (const int64_t target : AllTargets()) {
    if (name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      return true;
    }
  }
  return false;
}

}  // namespace shardinit::kernels
