// Fills memory with runs of elements, in batches of blocks, for one instruction set.
//
// If a run starts at a block and is long enough for whole vectors of blocks, these are written
// directly to their place. The rest (a run's first elements up to a block, its last blocks, rows
// shorter than a vector) waits in a list of pieces until the list fills a batch. Blocks in a batch
// need not be neighbours, which makes many short rows about as cheap as one long row. A block is
// always generated whole, even if a piece uses one of its elements.

#include <hwy/highway.h>  // operations for this instruction set

// The formulas are compiled again for this instruction set. kernels.cc includes their other
// headers, which are compiled for the baseline.
#undef SHARDINIT_FORMULAS
#define SHARDINIT_FORMULAS shardinit::kernels::HWY_NAMESPACE
#undef SHARDINIT_INLINE
#define SHARDINIT_INLINE HWY_INLINE
HWY_BEFORE_NAMESPACE();
#include "rng/jax-samplers-inl.h"
#include "rng/torch-samplers-inl.h"
#include "tensor/encode-inl.h"
HWY_AFTER_NAMESPACE();

#if HWY_HAVE_SCALABLE
// Vectors whose length the compiler does not know (SVE) cannot be members of the number types. A
// processor with SVE also has NEON, which runs instead.
namespace shardinit::kernels::N_NEON {
void RunJob(const Job& job);
int RunTorch(const TorchJob& job);
}  // namespace shardinit::kernels::N_NEON
#elif HWY_TARGET != HWY_SCALAR
// Each file needs the files before it.
// clang-format off
#include "kernels/wide-inl.h"
#include "kernels/number-inl.h"
#include "kernels/philox-inl.h"
#include "kernels/threefry-inl.h"
#include "kernels/samplers-inl.h"
#include "kernels/encode-inl.h"
// clang-format on
#endif

#include "kernels/torch_cpu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// This target has no vectors.
void RunJob(const Job& job) { RunReference(job); }

#elif HWY_HAVE_SCALABLE

void RunJob(const Job& job) { N_NEON::RunJob(job); }

#else

// `Formulas` belongs to an engine. It computes elements from the words that MakeWords generates
// with the engine's keys.
template <class Formulas, class Sampler, class Encoder>
class Filler {
 public:
  Filler(const Sampler& sampler, Stream stream)
      : sampler_(sampler), stream_(stream), keys_(stream, 0) {
    for (size_t k = 0; k < hn::Lanes(D64()); ++k) order_[Slot(k, kInterleaved)] = k;
  }

  // Generates elements first … first + count - 1 for `out`. Some are written only by Flush.
  void Add(uint64_t first, size_t count, uint8_t* out) {
    // All blocks of a batch have the same high word of the counter.
    const uint64_t same_high = kElementsPerHigh - first % kElementsPerHigh;
    if (count > same_high) {
      Add(first, same_high, out);
      return Add(first + same_high, count - same_high, out + same_high * Encoder::kBytes);
    }
    if (first / kElementsPerHigh != high_) {
      Flush();
      high_ = static_cast<uint32_t>(first / kElementsPerHigh);
      keys_ = Keys(stream_, high_);
    }

    const size_t vector = 4 * BlocksAtOnce();
    while (count > 0) {
      const size_t skip = first % 4;
      if (skip == 0 && count >= vector) {
        const size_t whole = count / vector * vector;
        WriteDirectly(first / 4, whole / 4, out);
        first += whole, count -= whole, out += whole * Encoder::kBytes;
        continue;
      }
      const bool head = skip != 0 && count >= vector + 4 - skip;
      const size_t taken = head ? 4 - skip : count;
      AddPiece(first / 4, skip, taken, out);
      first += taken, count -= taken, out += taken * Encoder::kBytes;
    }
  }

  void Flush() {
    if (blocks_ == 0) return;
    const size_t n = BlocksAtOnce();
    const size_t blocks = (blocks_ + n - 1) / n * n;
    // Unused lanes may have any counter.
    for (size_t k = blocks_; k < blocks; ++k) waiting_.block[Slot(k, kInterleaved)] = 0;
    uint8_t buffer[kBatch * 4 * Encoder::kBytes];
    Make(waiting_, blocks, buffer);
    for (size_t i = 0; i < pieces_; ++i) {
      const Piece& piece = piece_[i];
      const uint8_t* const from = buffer + piece.begin * Encoder::kBytes;
      // A copy of a size that the compiler knows needs no call.
      if (piece.count == 1) {
        std::memcpy(piece.out, from, Encoder::kBytes);
      } else if (piece.count == 4) {
        std::memcpy(piece.out, from, 4 * Encoder::kBytes);
      } else {
        std::memcpy(piece.out, from, piece.count * Encoder::kBytes);
      }
    }
    blocks_ = pieces_ = 0;
  }

 private:
  using Keys = typename Formulas::Keys;
  static constexpr bool kInterleaved = Encoder::kInterleaved;
  static constexpr uint64_t kElementsPerHigh = Keys::kElementsPerHigh;

  struct Piece {
    uint8_t* out;
    uint32_t begin, count;  // in elements of the batch
  };

  void AddPiece(uint64_t block, size_t skip, size_t count, uint8_t* out) {
    const size_t blocks = (skip + count + 3) / 4;
    if (blocks_ + blocks > kBatch) Flush();
    piece_[pieces_++] = {out, static_cast<uint32_t>(4 * blocks_ + skip),
                         static_cast<uint32_t>(count)};
    for (size_t i = 0; i < blocks; ++i) {
      waiting_.block[Slot(blocks_++, kInterleaved)] = block + i;
    }
  }

  void WriteDirectly(uint64_t block, size_t blocks, uint8_t* out) {
    const D64 d;
    const auto order = hn::Load(d, order_);
    for (size_t k = 0; k < std::min(blocks, kBatch); k += hn::Lanes(d)) {
      hn::Store(hn::Add(order, hn::Set(d, block + k)), d, run_.block + k);
    }
    while (blocks > 0) {
      const size_t now = std::min(blocks, kBatch);
      Make(run_, now, out);
      blocks -= now, out += 4 * now * Encoder::kBytes;
    }
  }

  void Make(Counters& counters, size_t blocks, uint8_t* out) {
    MakeWords(keys_, blocks, counters, words_);
    const D32 d;
    const size_t step = 2 * BlocksAtOnce();
    const Sampler sampler = sampler_;
    for (size_t i = 0; i < 2 * blocks; i += step, out += 2 * step * Encoder::kBytes) {
      const Elements made =
          Formulas::Make(sampler, wide::Load(d, words_.even + i), wide::Load(d, words_.odd + i));
      StoreElements<Encoder>(made.a, made.b, out);
    }
  }

  const Sampler sampler_;
  const Stream stream_;
  uint32_t high_ = 0;  // the high word of the counters of all waiting blocks
  Keys keys_;
  HWY_ALIGN uint64_t order_[hn::MaxLanes(D64())];  // the block of each lane
  Counters run_, waiting_;
  Words words_;
  Piece piece_[kBatch];
  size_t blocks_ = 0, pieces_ = 0;  // waiting blocks and pieces
};

template <class Formulas, class Encoder, class Sampler>
void RunTyped(const Job& job, const Sampler& sampler) {
  Filler<Formulas, Sampler, Encoder> filler(sampler, job.stream);
  for (size_t row = 0; row < job.rows; ++row) {
    filler.Add(job.first + row * job.stride, job.count,
               job.out + row * job.count * Encoder::kBytes);
  }
  filler.Flush();
}

template <class Formulas, class Sampler>
void Run(const Job& job, const Sampler& sampler) {
  switch (job.dtype) {
    case DType::f32:
      return RunTyped<Formulas, EncodeF32>(job, sampler);
    case DType::f64:
      return RunTyped<Formulas, EncodeF64>(job, sampler);
    case DType::bf16:
      return RunTyped<Formulas, EncodeBf16>(job, sampler);
    case DType::f16:
      return RunTyped<Formulas, EncodeF16>(job, sampler);
    case DType::f8e4m3fn:
      return RunTyped<Formulas, EncodeF8E4M3Fn>(job, sampler);
    case DType::f8e5m2:
      return RunTyped<Formulas, EncodeF8E5M2>(job, sampler);
    default:
      return;  // FillRows accepts only floats.
  }
}

template <class Formulas>
void Run(const Job& job, const BitsSampler& s) {
  RunTyped<Formulas, EncodeF32>(job, s);
}

void RunPhilox(const Job& job, const auto& s) { Run<OfPhilox>(job, s); }

void RunPhilox(const Job& job, const NormalSampler& s) {
  if (s.mean == 0 && s.scale > 0) {
    Run<OfPhilox>(job, NormalAboutZero(s));
  } else {
    Run<OfPhilox>(job, s);
  }
}

void RunPhilox(const Job& job, const TruncatedNormalSampler& s) {
  if (s.tail[0] == s.tail[1] && s.step[0] == s.step[1] && s.z_low == -s.z_high) {
    Run<OfPhilox>(job, SymmetricTruncatedNormal(s));
  } else {
    Run<OfPhilox>(job, s);
  }
}

// The engines that have kernels.
struct EngineKernel {
  const Engine* engine;
  void (*run)(const Job& job);
};
constexpr EngineKernel kEngineKernels[] = {
    {&kPhilox4x32,
     [](const Job& job) {
       std::visit([&](const auto& sampler) { RunPhilox(job, sampler); }, job.sampler);
     }},
    {&kJaxThreefry,
     [](const Job& job) {
       std::visit([&](const auto& sampler) { Run<OfJax>(job, sampler); }, job.sampler);
     }},
};

void RunJob(const Job& job) {
  for (const EngineKernel& kernel : kEngineKernels) {
    if (kernel.engine == job.stream.engine) return kernel.run(job);
  }
  RunReference(job);
}

#endif

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace shardinit::kernels::HWY_NAMESPACE {
[[maybe_unused]] const bool kRunEntered = (BackendOf(HWY_TARGET).run = &RunJob) != nullptr;
}  // namespace shardinit::kernels::HWY_NAMESPACE
