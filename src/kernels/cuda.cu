// The kernels of CUDA devices, of what kernels/cuda-inl.h has for a thread. clang compiles this to
// PTX (cuda.cmake), which names the rounding of each operation, so no later compiler fuses a
// multiplication and an addition. Nothing of NVIDIA's is needed for that.

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))

// The standard library is included first, since what comes below is compiled for the device, too.
// clang-format off
#include <cstdlib>  // clang's own headers need it before the others.
// clang-format on
#include <array>
#include <bit>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#pragma clang force_cuda_host_device begin
#include "base/number.h"
// Memory of a thread is slow: values stay in registers only if all is inlined and unrolled.
#undef SHARDINIT_INLINE
#define SHARDINIT_INLINE inline __attribute__((always_inline))
#include "kernels/cuda-inl.h"
#pragma clang force_cuda_host_device end

// These are the words that the names of kernels are made of, and what they stand for.
namespace shardinit::kernels::cuda {
using philox = Philox;
using threefry = Threefry;
using uniform = UniformSampler;
using normal = NormalSampler;
using truncated_normal = TruncatedNormalSampler;
}  // namespace shardinit::kernels::cuda
using namespace shardinit::kernels;  // NOLINT: this is no header.

// Each kernel is a file of PTX, so that a driver compiles only what is used. The build names the
// kernel, its engine and its sampler.
extern "C" __global__ void SHARDINIT_KERNEL(const CudaFill fill,
                                            const cuda::SHARDINIT_SAMPLER sampler) {
  const uint64_t threads = static_cast<uint32_t>(__nvvm_read_ptx_sreg_ntid_x());
  const auto block = static_cast<uint32_t>(__nvvm_read_ptx_sreg_ctaid_x());
  const auto blocks = static_cast<uint32_t>(__nvvm_read_ptx_sreg_nctaid_x());
  const auto thread = static_cast<uint32_t>(__nvvm_read_ptx_sreg_tid_x());
  cuda::Fill<cuda::SHARDINIT_ENGINE>(fill, sampler, threads * block + thread, threads * blocks);
}
