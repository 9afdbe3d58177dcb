// Applies blocks of reflections to a panel of columns, for one instruction set. A vector holds one
// row of as many columns as it has lanes, so each lane does what rng/orthogonal.cc does for one
// column, operation by operation.
//
// For each 2 x 8 multiplications and additions of a row, a group of columns (one vector wide) and a
// block's vectors are read twice from the L2 cache. This keeps a processor busy that does one
// multiplication and one addition at a time.

#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DD = hn::ScalableTag<double>;

static_assert(kReflections == 8, "the code below names eight of everything");

// `vectors` has the block's vectors: `height` rows of eight. `q` has the same rows of a group of
// columns.
HWY_INLINE void Reflect(const ReflectionBlock& block, const double* HWY_RESTRICT vectors,
                        int64_t height, double* HWY_RESTRICT q) {
  const DD d;
  const size_t lanes = hn::Lanes(d);
  auto y0 = hn::Zero(d), y1 = y0, y2 = y0, y3 = y0, y4 = y0, y5 = y0, y6 = y0, y7 = y0;
  for (int64_t i = 0; i < height; ++i) {
    const double* v = vectors + i * kReflections;
    const auto x = hn::Load(d, q + i * lanes);
    y0 = hn::Add(y0, hn::Mul(hn::Set(d, v[0]), x));
    y1 = hn::Add(y1, hn::Mul(hn::Set(d, v[1]), x));
    y2 = hn::Add(y2, hn::Mul(hn::Set(d, v[2]), x));
    y3 = hn::Add(y3, hn::Mul(hn::Set(d, v[3]), x));
    y4 = hn::Add(y4, hn::Mul(hn::Set(d, v[4]), x));
    y5 = hn::Add(y5, hn::Mul(hn::Set(d, v[5]), x));
    y6 = hn::Add(y6, hn::Mul(hn::Set(d, v[6]), x));
    y7 = hn::Add(y7, hn::Mul(hn::Set(d, v[7]), x));
  }

  // s7 = scale7 y7, s6 = scale6 (y6 - p67 s7), …
  const auto minus = [&](auto y, int j, int k, auto s) HWY_ATTR {
    return hn::Sub(y, hn::Mul(hn::Set(d, block.products[j][k]), s));
  };
  const auto times = [&](auto y, int j) HWY_ATTR { return hn::Mul(y, hn::Set(d, block.scale[j])); };
  const auto s7 = times(y7, 7);
  y6 = minus(y6, 6, 7, s7);
  const auto s6 = times(y6, 6);
  y5 = minus(minus(y5, 5, 7, s7), 5, 6, s6);
  const auto s5 = times(y5, 5);
  y4 = minus(minus(minus(y4, 4, 7, s7), 4, 6, s6), 4, 5, s5);
  const auto s4 = times(y4, 4);
  y3 = minus(minus(minus(minus(y3, 3, 7, s7), 3, 6, s6), 3, 5, s5), 3, 4, s4);
  const auto s3 = times(y3, 3);
  y2 = minus(minus(minus(minus(y2, 2, 7, s7), 2, 6, s6), 2, 5, s5), 2, 4, s4);
  y2 = minus(y2, 2, 3, s3);
  const auto s2 = times(y2, 2);
  y1 = minus(minus(minus(minus(y1, 1, 7, s7), 1, 6, s6), 1, 5, s5), 1, 4, s4);
  y1 = minus(minus(y1, 1, 3, s3), 1, 2, s2);
  const auto s1 = times(y1, 1);
  y0 = minus(minus(minus(minus(y0, 0, 7, s7), 0, 6, s6), 0, 5, s5), 0, 4, s4);
  y0 = minus(minus(minus(y0, 0, 3, s3), 0, 2, s2), 0, 1, s1);
  const auto s0 = times(y0, 0);

  for (int64_t i = 0; i < height; ++i) {
    const double* v = vectors + i * kReflections;
    auto x = hn::Load(d, q + i * lanes);
    x = hn::Sub(x, hn::Mul(hn::Set(d, v[7]), s7));
    x = hn::Sub(x, hn::Mul(hn::Set(d, v[6]), s6));
    x = hn::Sub(x, hn::Mul(hn::Set(d, v[5]), s5));
    x = hn::Sub(x, hn::Mul(hn::Set(d, v[4]), s4));
    x = hn::Sub(x, hn::Mul(hn::Set(d, v[3]), s3));
    x = hn::Sub(x, hn::Mul(hn::Set(d, v[2]), s2));
    x = hn::Sub(x, hn::Mul(hn::Set(d, v[1]), s1));
    x = hn::Sub(x, hn::Mul(hn::Set(d, v[0]), s0));
    hn::Store(x, d, q + i * lanes);
  }
}

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

  // The column of a later block is 0 where this block's vectors are not, so the first blocks of a
  // panel leave its first columns unchanged.
  for (int64_t b = (job.first + job.count - 1) / kReflections; b >= 0; --b) {
    const ReflectionBlock& block = job.blocks[b];
    const int64_t height = job.rows - block.first;
    std::copy_n(block.vectors, height * kReflections, vectors.get());
    for (int64_t g = 0; g < groups; ++g) {
      Reflect(block, vectors.get(), height, panel.get() + g * size + block.first * lanes);
    }
  }

  for (int64_t row = 0; row < job.rows; ++row) {
    for (int64_t c = 0; c < job.count; ++c) {
      job.out[row * job.row_stride + c * job.column_stride] = RoundProduct(at(row, c), job.gain);
    }
  }
}

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace shardinit::kernels::HWY_NAMESPACE {
[[maybe_unused]] const bool kPanelEntered = EnterPanel(HWY_TARGET, &RunPanel);
}  // namespace shardinit::kernels::HWY_NAMESPACE
