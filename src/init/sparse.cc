#include <fmt/format.h>

#include <cmath>

#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kSparsityStd[] = {
    {"sparsity", "the part of each column that is zero, from 0 to 1", {}},
    {"std", "the standard deviation of the others", 0.01},
};

}  // namespace

// This is torch.nn.init.sparse_ (Martens 2010).
extern const Initializer kSparse = {
    .name = "sparse",
    .description = "zeros at random places of each column, normal elsewhere, as of PyTorch",
    .parameters = kSparsityStd,
    .lower = [](Arguments a, const Fans& fans,
                Diagnostics& diagnostics) -> std::optional<Distribution> {
      if (!CheckScale("std", a[1], diagnostics)) return {};
      if (!(a[0].value >= 0 && a[0].value <= 1)) {
        diagnostics.Error(a[0].span,
                          fmt::format("`sparsity` is {}, but must be from 0 to 1: it is the part "
                                      "of each column that is zero",
                                      a[0].value));
        return {};
      }
      if (const size_t rank = fans.shape().size(); rank != 2) {
        return fans.Report(fmt::format("`sparse` needs 2 dimensions, but this tensor has {}", rank),
                           "", diagnostics);
      }
      // 32 bits besides those that are drawn tell the places in a column apart.
      if (const int64_t rows = fans.shape()[0]; rows > kMaxSparseRows) {
        return fans.Report(fmt::format("a `sparse` matrix has at most {} rows, but this one has {}",
                                       kMaxSparseRows, rows),
                           "make it of several tensors", diagnostics);
      }
      const double zeros = std::ceil(a[0].value * static_cast<double>(fans.shape()[0]));
      return Sparse{a[1].value, static_cast<int64_t>(zeros)};
    },
};

}  // namespace shardinit
