// Applies blocks of reflections to a panel of columns, for one instruction set. A vector contains
// one row of as many columns as it has lanes. So each lane performs the same operations as the
// reference in orthogonal_test.cc does for one column.
//
// For each 2 x 8 multiplications and additions of a row, a group of columns (one vector wide) and a
// block's vectors are read twice from the L2 cache. This keeps a processor busy that does one
// multiplication and one addition at a time.

#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

// The formula is compiled again for this instruction set.
#undef SHARDINIT_FORMULAS
#define SHARDINIT_FORMULAS shardinit::kernels::HWY_NAMESPACE
#undef SHARDINIT_INLINE
#define SHARDINIT_INLINE HWY_INLINE
HWY_BEFORE_NAMESPACE();
#include "rng/reflections-inl.h"
HWY_AFTER_NAMESPACE();

#if HWY_HAVE_SCALABLE  // as in kernels/fill-inl.h
namespace shardinit::kernels::N_NEON {
void RunPanel(const PanelJob& job);
}  // namespace shardinit::kernels::N_NEON
#endif

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

#if HWY_HAVE_SCALABLE

void RunPanel(const PanelJob& job) { N_NEON::RunPanel(job); }

#else

namespace hn = hwy::HWY_NAMESPACE;
using DD = hn::ScalableTag<double>;

// A vector of numbers, each from another column.
struct Columns {
  explicit HWY_INLINE Columns(double x) : v(hn::Set(DD(), x)) {}
  explicit HWY_INLINE Columns(hn::Vec<DD> numbers) : v(numbers) {}
  hn::Vec<DD> v;
};
HWY_INLINE Columns operator+(Columns a, Columns b) { return Columns(hn::Add(a.v, b.v)); }
HWY_INLINE Columns operator-(Columns a, Columns b) { return Columns(hn::Sub(a.v, b.v)); }
HWY_INLINE Columns operator*(Columns a, Columns b) { return Columns(hn::Mul(a.v, b.v)); }
HWY_INLINE Columns Load(const double* from, Columns) { return Columns(hn::Load(DD(), from)); }
HWY_INLINE void Store(Columns x, double* to) { hn::Store(x.v, DD(), to); }

void RunPanel(const PanelJob& job) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DD()));
  const int64_t groups = (job.count + lanes - 1) / lanes, size = job.rows * lanes;
  // The rows of a group are contiguous.
  const auto panel = hwy::AllocateAligned<double>(static_cast<size_t>(groups * size));
  const auto vectors = hwy::AllocateAligned<double>(static_cast<size_t>(job.rows * kReflections));
  if (!panel || !vectors) throw std::bad_alloc();
  std::fill_n(panel.get(), groups * size, 0.0);
  const auto at = [&](int64_t row, int64_t column) -> double& {
    return panel[column / lanes * size + row * lanes + column % lanes];
  };
  for (int64_t c = 0; c < job.count; ++c) {
    const int64_t column = job.first + c;
    at(column, c) = job.blocks[column / kReflections].sign[column % kReflections];
  }

  // The column of a later block is 0 wherever this block's vectors are nonzero, so the first blocks
  // of a panel leave its first columns unchanged.
  for (int64_t b = (job.first + job.count - 1) / kReflections; b >= 0; --b) {
    const ReflectionBlock& block = job.blocks[b];
    const int64_t height = job.rows - block.first;
    std::copy_n(block.vectors, height * kReflections, vectors.get());
    for (int64_t g = 0; g < groups; ++g) {
      reflections::Reflect<Columns>(block, vectors.get(), height, lanes,
                                    panel.get() + g * size + block.first * lanes);
    }
  }

  for (int64_t row = 0; row < job.rows; ++row) {
    for (int64_t c = 0; c < job.count; ++c) {
      job.out[row * job.row_stride + c * job.column_stride] = RoundProduct(at(row, c), job.gain);
    }
  }
}

#endif

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace shardinit::kernels::HWY_NAMESPACE {
[[maybe_unused]] const bool kPanelEntered =
    (BackendOf(HWY_TARGET).make_panel = &RunPanel) != nullptr;
}  // namespace shardinit::kernels::HWY_NAMESPACE
