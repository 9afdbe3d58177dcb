// Checks all 2^32 words on a device: compares the number types of kernels/cuda_number.h with the
// same formulas for plain numbers, which PTX rounds as IEEE 754 defines, and the pairs of
// NormalBf16() with encoded exact ones. tests/device/prepare.py compiles this file, and fills.py
// runs it.
#include "kernels/cuda.cu"

using namespace shardinit;  // NOLINT: not a header

namespace {

// Kinds of values; the number of words with other bits is counted for each.
enum Kind { kUniform, kNormal, kTruncated, kJaxUniform, kJaxNormal, kJaxTruncated, kBf16, kKinds };

struct Parameters {
  UniformSampler uniform;
  NormalSampler normal;
  TruncatedNormalSampler truncated;
};

__device__ bool Differ(float a, float b) {
  return std::bit_cast<uint32_t>(a) != std::bit_cast<uint32_t>(b);
}

}  // namespace

// `counts` gets a number for each kind, then the number of pairs that were computed exactly.
// `worst` gets each thread's largest error of a fast number, divided by its bound.
extern "C" __global__ void look_at_words(const Parameters p, uint64_t* counts, float* worst) {
  const uint32_t threads = __nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_nctaid_x();
  const uint32_t thread =
      __nvvm_read_ptx_sreg_ntid_x() * __nvvm_read_ptx_sreg_ctaid_x() + __nvvm_read_ptx_sreg_tid_x();
  using cuda::Floats;
  using cuda::Words;
  uint64_t different[kKinds] = {}, exactly = 0;
  float error = 0;
  for (uint64_t i = thread; i < uint64_t{1} << 32; i += threads) {
    const auto word = static_cast<uint32_t>(i);
    const uint32_t angle = word * 0x9E3779B1u + 0x7F4A7C15u;  // also each value once
    const Words<1> w = word, a = angle;
    const float first = samplers::Normal<float>(p.normal, word, angle, false);
    const float second = samplers::Normal<float>(p.normal, word, angle, true);
    different[kNormal] += Differ(first, samplers::Normal<Floats<1>>(p.normal, w, a, false).v[0]) ||
                          Differ(second, samplers::Normal<Floats<1>>(p.normal, w, a, true).v[0]);
    different[kUniform] += Differ(samplers::Uniform<float>(p.uniform, word),
                                  samplers::Uniform<Floats<1>>(p.uniform, w).v[0]);
    different[kTruncated] += Differ(samplers::TruncatedNormal<float>(p.truncated, word),
                                    samplers::TruncatedNormal<Floats<1>>(p.truncated, w).v[0]);
    different[kJaxUniform] +=
        Differ(samplers::Jax<float>(p.uniform, word), samplers::Jax<Floats<1>>(p.uniform, w).v[0]);
    different[kJaxNormal] +=
        Differ(samplers::Jax<float>(p.normal, word), samplers::Jax<Floats<1>>(p.normal, w).v[0]);
    different[kJaxTruncated] += Differ(samplers::Jax<float>(p.truncated, word),
                                       samplers::Jax<Floats<1>>(p.truncated, w).v[0]);

    different[kBf16] += cuda::NormalBf16(p.normal, w, a).v[0] != cuda::Bf16Pair(first, second);
    const cuda::NearNormals near = cuda::NearNormalsOf(p.normal.scale, word, angle);
    const float even = first == 0 ? std::fabs(near.even) : std::fabs((near.even - first) / first);
    const float odd = second == 0 ? std::fabs(near.odd) : std::fabs((near.odd - second) / second);
    error = std::fmax(error, std::fmax(even, odd) / near.error);
    const auto end = [&](float e) {
      return cuda::Bf16Pair(std::fma(e, near.even, near.even), std::fma(e, near.odd, near.odd));
    };
    exactly += end(-near.error) != end(near.error);
  }
  for (int kind = 0; kind < kKinds; ++kind) {
    __nvvm_atom_add_gen_ll(reinterpret_cast<long long*>(counts + kind),
                           static_cast<long long>(different[kind]));
  }
  __nvvm_atom_add_gen_ll(reinterpret_cast<long long*>(counts + kKinds),
                         static_cast<long long>(exactly));
  worst[thread] = error;
}
