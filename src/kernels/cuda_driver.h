// Calls the functions of CUDA's driver, libcuda.so.1, which is loaded when it is first needed. So
// building this needs no CUDA headers or libraries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace shardinit::kernels {

// These are types of cuda.h, as callers see them.
using CudaContext = struct CUctx_st*;
using CudaModule = struct CUmod_st*;
using CudaFunction = struct CUfunc_st*;
using CudaStream = struct CUstream_st*;
using CudaAddress = uint64_t;

class CudaDriver {
 public:
  // Throws Error (kWorld) if the driver is missing.
  static const CudaDriver& Load();

  // While it exists, a context of the device that owns this memory is the thread's current one: the
  // already current context if it belongs to the device, otherwise the device's primary context.
  class Current {
   public:
    Current(const CudaDriver& driver, CudaAddress memory);
    ~Current();
    Current(const Current&) = delete;

    int device() const { return device_; }
    CudaContext context() const { return context_; }

   private:
    const CudaDriver& driver_;
    int device_ = 0;
    CudaContext context_ = nullptr;
    bool pushed_ = false;
  };

  // All of these use the current context and throw Error (kWorld) with the driver's reason.
  int Attribute(int attribute, int device) const;
  // Returns null if this driver cannot compile PTX, or not this PTX.
  CudaModule LoadModule(const std::string& ptx) const;
  CudaFunction FunctionOf(CudaModule module, const std::string& name) const;
  void Launch(CudaFunction function, unsigned blocks, unsigned threads, CudaStream stream,
              void** arguments) const;
  // Writes `count` elements of 1, 2, 4 or 8 bytes, the low bytes of `element`.
  void Repeat(uint64_t element, int bytes, uint64_t count, CudaAddress to, CudaStream stream) const;

  // Values of CUdevice_attribute.
  static constexpr int kMultiprocessors = 16, kMajor = 75;

 private:
  CudaDriver();
  template <typename Function>
  void Find(const char* name, Function* function);
  void Require(int result, const char* what) const;

  void* library_ = nullptr;
  int (*init_)(unsigned) = nullptr;
  int (*error_string_)(int, const char**) = nullptr;
  int (*pointer_attribute_)(void*, int, CudaAddress) = nullptr;
  int (*current_)(CudaContext*) = nullptr;
  int (*device_of_current_)(int*) = nullptr;
  int (*device_at_)(int*, int) = nullptr;
  int (*retain_primary_)(CudaContext*, int) = nullptr;
  int (*push_)(CudaContext) = nullptr;
  int (*pop_)(CudaContext*) = nullptr;
  int (*attribute_)(int*, int, int) = nullptr;
  int (*load_module_)(CudaModule*, const void*, unsigned, int*, void**) = nullptr;
  int (*function_of_)(CudaFunction*, CudaModule, const char*) = nullptr;
  int (*launch_)(CudaFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                 CudaStream, void**, void**) = nullptr;
  int (*set8_)(CudaAddress, unsigned char, size_t, CudaStream) = nullptr;
  int (*set16_)(CudaAddress, unsigned short, size_t, CudaStream) = nullptr;
  int (*set32_)(CudaAddress, unsigned, size_t, CudaStream) = nullptr;
  int (*set32_rows_)(CudaAddress, size_t, unsigned, size_t, size_t, CudaStream) = nullptr;
};

}  // namespace shardinit::kernels
