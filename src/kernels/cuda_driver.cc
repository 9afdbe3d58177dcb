#include "kernels/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "base/error.h"

namespace shardinit::kernels {
namespace {

// Constants of cuda.h: from CUresult, CUpointer_attribute, CUmemorytype and CUjit_option.
constexpr int kSuccess = 0, kInvalidValue = 1;
constexpr int kMemoryType = 2, kDeviceOrdinal = 9;
constexpr unsigned kDeviceMemory = 2;
constexpr int kErrorLog = 5, kErrorLogBytes = 6;
// The device does not support this code, the PTX version is too new, the PTX compiler is missing,
// or it is disabled (CUDA_DISABLE_PTX_JIT).
constexpr int kNoBinaryForGpu = 209, kJitCompilerNotFound = 221, kUnsupportedPtx = 222,
              kJitDisabled = 223;

}  // namespace

template <typename Function>
void CudaDriver::Find(const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library_, name));
  if (*function != nullptr) return;
  throw Error(ExitCode::kWorld, fmt::format("CUDA's driver has no function `{}`", name),
              "install a newer driver");
}

CudaDriver::CudaDriver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    throw Error(ExitCode::kWorld, fmt::format("cannot load CUDA's driver: {}", dlerror()));
  }
  Find("cuInit", &init_);
  Find("cuGetErrorString", &error_string_);
  Find("cuPointerGetAttribute", &pointer_attribute_);
  Find("cuCtxGetCurrent", &current_);
  Find("cuCtxGetDevice", &device_of_current_);
  Find("cuDeviceGet", &device_at_);
  Find("cuDevicePrimaryCtxRetain", &retain_primary_);
  Find("cuCtxPushCurrent_v2", &push_);
  Find("cuCtxPopCurrent_v2", &pop_);
  Find("cuDeviceGetAttribute", &attribute_);
  Find("cuModuleLoadDataEx", &load_module_);
  Find("cuModuleGetFunction", &function_of_);
  Find("cuLaunchKernel", &launch_);
  Find("cuMemsetD8Async", &set8_);
  Find("cuMemsetD16Async", &set16_);
  Find("cuMemsetD32Async", &set32_);
  Find("cuMemsetD2D32Async", &set32_rows_);
  Require(init_(0), "cannot start CUDA");
}

const CudaDriver& CudaDriver::Load() {
  static const CudaDriver driver;
  return driver;
}

void CudaDriver::Require(int result, const char* what) const {
  if (result == kSuccess) return;
  const char* reason = nullptr;
  if (error_string_(result, &reason) != kSuccess) reason = "an error that the driver cannot name";
  throw Error(ExitCode::kWorld, fmt::format("{}: {} (CUDA error {})", what, reason, result));
}

CudaDriver::Current::Current(const CudaDriver& driver, CudaAddress memory) : driver_(driver) {
  unsigned type = 0;
  int ordinal = 0;
  const int result = driver.pointer_attribute_(&type, kMemoryType, memory);
  if (result == kInvalidValue || (result == kSuccess && type != kDeviceMemory)) {
    throw Usage("`out` is not memory of a CUDA device");
  }
  driver.Require(result, "cannot tell whose memory `out` is");
  driver.Require(driver.pointer_attribute_(&ordinal, kDeviceOrdinal, memory),
                 "cannot tell whose memory `out` is");
  driver.Require(driver.device_at_(&device_, ordinal), "cannot find the device of `out`");
  int current = -1;
  driver.Require(driver.current_(&context_), "cannot tell the current CUDA context");
  if (context_ != nullptr) {
    driver.Require(driver.device_of_current_(&current), "cannot tell the current CUDA device");
    if (current == device_) return;
  }
  // Never released: a program with memory on the device uses the device until it exits.
  driver.Require(driver.retain_primary_(&context_, device_), "cannot use the device of `out`");
  driver.Require(driver.push_(context_), "cannot use the device of `out`");
  pushed_ = true;
}

CudaDriver::Current::~Current() {
  if (pushed_) driver_.pop_(&context_);
}

int CudaDriver::Attribute(int attribute, int device) const {
  int value = 0;
  Require(attribute_(&value, attribute, device), "cannot query the abilities of a CUDA device");
  return value;
}

CudaModule CudaDriver::LoadModule(const std::string& ptx) const {
  CudaModule module = nullptr;
  std::array<char, 4096> log{};
  std::array<int, 2> options = {kErrorLog, kErrorLogBytes};
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  const int result =
      load_module_(&module, ptx.c_str(), options.size(), options.data(), values.data());
  if (result == kNoBinaryForGpu || result == kJitCompilerNotFound || result == kUnsupportedPtx ||
      result == kJitDisabled) {
    return nullptr;
  }
  Require(result, log[0] == '\0'
                      ? "cannot load the kernels for CUDA"
                      : fmt::format("cannot load the kernels for CUDA: {}", log.data()).c_str());
  return module;
}

CudaFunction CudaDriver::FunctionOf(CudaModule module, const std::string& name) const {
  CudaFunction function = nullptr;
  Require(function_of_(&function, module, name.c_str()), "cannot find a kernel for CUDA");
  return function;
}

void CudaDriver::Launch(CudaFunction function, unsigned blocks, unsigned threads, CudaStream stream,
                        void** arguments) const {
  Require(launch_(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr),
          "cannot start a kernel for CUDA");
}

void CudaDriver::Repeat(uint64_t element, int bytes, uint64_t count, CudaAddress to,
                        CudaStream stream) const {
  const auto low = static_cast<unsigned>(element);
  int result = kSuccess;
  switch (bytes) {
    case 1:
      result = set8_(to, static_cast<unsigned char>(element), count, stream);
      break;
    case 2:
      result = set16_(to, static_cast<unsigned short>(element), count, stream);
      break;
    case 4:
      result = set32_(to, low, count, stream);
      break;
    case 8: {
      const auto high = static_cast<unsigned>(element >> 32);
      if (low == high) {
        result = set32_(to, low, 2 * count, stream);
      } else {
        result = set32_rows_(to, 8, low, 1, count, stream);
        if (result == kSuccess) result = set32_rows_(to + 4, 8, high, 1, count, stream);
      }
      break;
    }
    default:
      throw Bug("no element has this size");
  }
  Require(result, "cannot fill memory of a CUDA device");
}

}  // namespace shardinit::kernels
