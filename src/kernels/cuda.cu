// Wraps the code of kernels/cuda-inl.h in CUDA kernels. clang compiles this to PTX (cuda.cmake),
// which specifies the rounding of each operation, so no later compiler fuses a multiplication and
// an addition. This needs no NVIDIA software.

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))

// The standard library is included first, because the code below is also compiled for the device.
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
// A thread's memory is slow. Values stay in registers only if everything is inlined and unrolled.
#undef SHARDINIT_INLINE
#define SHARDINIT_INLINE inline __attribute__((always_inline))
#include "kernels/cuda-inl.h"
#pragma clang force_cuda_host_device end

// Maps the words in the names of kernels to types.
namespace shardinit::kernels::cuda {
using philox = Philox;
using threefry = Threefry;
using uniform = UniformSampler;
using normal = NormalSampler;
using truncated_normal = TruncatedNormalSampler;
}  // namespace shardinit::kernels::cuda
using namespace shardinit::kernels;  // NOLINT: not a header

// Each kernel is its own PTX file, so that a driver compiles only the kernels in use. The build
// defines the kernel's name, its engine and its sampler.
extern "C" __global__ void SHARDINIT_KERNEL(const CudaFill fill,
                                            const cuda::SHARDINIT_SAMPLER sampler) {
  const uint64_t threads = static_cast<uint32_t>(__nvvm_read_ptx_sreg_ntid_x());
  const auto block = static_cast<uint32_t>(__nvvm_read_ptx_sreg_ctaid_x());
  const auto blocks = static_cast<uint32_t>(__nvvm_read_ptx_sreg_nctaid_x());
  const auto thread = static_cast<uint32_t>(__nvvm_read_ptx_sreg_tid_x());
  cuda::Fill<cuda::SHARDINIT_ENGINE>(fill, sampler, threads * block + thread, threads * blocks);
}
