// A libcuda.so.1 without a device, for tests. Device memory is CPU memory, and kernels are compiled
// from the real kernels' source. Implements the functions that kernels/cuda_driver.cc calls.
// FAKE_CUDA_MAJOR sets the compute capability, FAKE_CUDA_NO_PTX makes it reject PTX with that
// error, and FAKE_CUDA_FAILS=cuName makes the function cuName fail.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/cuda-inl.h"

namespace {

using shardinit::NormalSampler;
using shardinit::TruncatedNormalSampler;
using shardinit::UniformSampler;
using shardinit::kernels::CudaFill;
namespace cuda = shardinit::kernels::cuda;

constexpr int kInvalidValue = 1, kNotFound = 500, kFailed = 999;

std::mutex mutex;
std::map<uint64_t, size_t> allocations;  // address → bytes
int contexts_in_use = 0;
thread_local int context = 0;  // whether the thread has a current context

bool Fails(std::string_view function) {
  const char* const failing = std::getenv("FAKE_CUDA_FAILS");
  return failing != nullptr && function == failing;
}

bool IsDeviceMemory(uint64_t address) {
  const std::lock_guard lock(mutex);
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return false;
  --after;
  return address - after->first < after->second;
}

struct Kernel {
  std::string_view name;
  void (*run)(const CudaFill&, const void* sampler, uint64_t thread, uint64_t threads);
};

template <class Engine, class Sampler>
void Run(const CudaFill& fill, const void* sampler, uint64_t thread, uint64_t threads) {
  cuda::Fill<Engine>(fill, *static_cast<const Sampler*>(sampler), thread, threads);
}

constexpr Kernel kKernels[] = {
    {"philox_uniform", Run<cuda::Philox, UniformSampler>},
    {"philox_normal", Run<cuda::Philox, NormalSampler>},
    {"philox_truncated_normal", Run<cuda::Philox, TruncatedNormalSampler>},
    {"threefry_uniform", Run<cuda::Threefry, UniformSampler>},
    {"threefry_normal", Run<cuda::Threefry, NormalSampler>},
    {"threefry_truncated_normal", Run<cuda::Threefry, TruncatedNormalSampler>},
};

template <typename T>
int Set(uint64_t to, T value, size_t count) {
  for (size_t i = 0; i < count; ++i)
    std::memcpy(reinterpret_cast<T*>(to) + i, &value, sizeof value);
  return 0;
}

}  // namespace

extern "C" {

// Tests call these.
void* fake_cuda_allocate(size_t bytes) {
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const std::lock_guard lock(mutex);
  allocations[reinterpret_cast<uint64_t>(memory)] = bytes;
  return memory;
}
void fake_cuda_free(void* memory) {
  const std::lock_guard lock(mutex);
  allocations.erase(reinterpret_cast<uint64_t>(memory));
  std::free(memory);
}
int fake_cuda_current() { return context; }

int cuInit(unsigned) { return Fails("cuInit") ? kFailed : 0; }
int cuGetErrorString(int error, const char** text) {
  *text = error == kInvalidValue ? "invalid argument" : "a failure that a test asked for";
  return 0;
}
int cuPointerGetAttribute(void* to, int attribute, uint64_t address) {
  if (Fails("cuPointerGetAttribute")) return kFailed;
  if (!IsDeviceMemory(address)) return kInvalidValue;
  const unsigned value = attribute == 2 ? 2 : 0;
  std::memcpy(to, &value, sizeof value);
  return 0;
}
int cuCtxGetCurrent(void** to) {
  *to = context > 0 ? &contexts_in_use : nullptr;
  return 0;
}
int cuCtxGetDevice(int* to) {
  *to = 0;
  return 0;
}
int cuDeviceGet(int* to, int ordinal) {
  *to = ordinal;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** to, int) {
  if (Fails("cuDevicePrimaryCtxRetain")) return kFailed;
  *to = &contexts_in_use;
  return 0;
}
int cuCtxPushCurrent_v2(void*) {
  ++context;
  return 0;
}
int cuCtxPopCurrent_v2(void**) {
  --context;
  return 0;
}
int cuDeviceGetAttribute(int* to, int attribute, int) {
  const char* const major = std::getenv("FAKE_CUDA_MAJOR");
  *to = attribute == 75 ? (major != nullptr ? std::atoi(major) : 8) : 2;
  return 0;
}
int cuModuleLoadDataEx(void** to, const void* text, unsigned count, int* options, void** values) {
  const std::string_view ptx = static_cast<const char*>(text);
  if (const char* const refusal = std::getenv("FAKE_CUDA_NO_PTX")) return std::atoi(refusal);
  if (Fails("cuModuleLoadDataEx") || ptx.find("\n.target sm_80\n") == ptx.npos) {
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] == 5) std::strcpy(static_cast<char*>(values[i]), "what the compiler says");
    }
    return kFailed;
  }
  *to = const_cast<void*>(text);
  return 0;
}
int cuModuleGetFunction(const void** to, void*, const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.name == name) *to = &kernel;
  }
  return *to == nullptr ? kNotFound : 0;
}
int cuLaunchKernel(const void* kernel, unsigned blocks, unsigned, unsigned, unsigned threads,
                   unsigned, unsigned, unsigned, void*, void** arguments, void**) {
  if (Fails("cuLaunchKernel")) return kFailed;
  const uint64_t all = uint64_t{blocks} * threads;
  for (uint64_t thread = 0; thread < all; ++thread) {
    static_cast<const Kernel*>(kernel)->run(*static_cast<const CudaFill*>(arguments[0]),
                                            arguments[1], thread, all);
  }
  return 0;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void*) {
  return Fails("cuMemsetD8Async") ? kFailed : Set(to, value, count);
}
int cuMemsetD16Async(uint64_t to, unsigned short value, size_t count, void*) {
  return Set(to, value, count);
}
int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void*) {
  return Set(to, value, count);
}
int cuMemsetD2D32Async(uint64_t to, size_t pitch, unsigned value, size_t width, size_t height,
                       void*) {
  for (size_t row = 0; row < height; ++row) Set(to + row * pitch, value, width);
  return 0;
}

}  // extern "C"
