#include "init/distribution.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/overloaded.h"

namespace shardinit {
namespace {

struct Largest {
  double operator()(const Constant& c) const { return std::fabs(c.value); }
  double operator()(const Uniform& u) const {
    return std::max(std::fabs(u.low), std::fabs(u.high));
  }
  double operator()(const Normal& n) const { return std::fabs(n.mean) + 7 * n.std; }
  double operator()(const Expression&) const { return 0; }
  double operator()(const Orthogonal& o) const { return std::fabs(o.gain); }
  double operator()(const Sparse& s) const { return 7 * s.std; }
  double operator()(const Normalized& n) const { return n.length; }
  double operator()(const TruncatedNormal& t) const {
    const double sigmas = std::max(std::fabs(t.low), std::fabs(t.high));
    return std::fabs(t.mean) + std::min(7.0, sigmas) * t.std;
  }
};

// `dimension 0`, `dimensions 1, 2, 3`.
std::string DimensionsInText(DimensionSet set) {
  std::vector<size_t> dimensions;
  for (size_t d = 0; d < 32; ++d) {
    if (set >> d & 1) dimensions.push_back(d);
  }
  return fmt::format("dimension{} {}", dimensions.size() == 1 ? "" : "s",
                     fmt::join(dimensions, ", "));
}

}  // namespace

OrthogonalSize SizeOf(const Orthogonal& orthogonal, const Shape& shape) {
  OrthogonalSize size{1, 1, 0, 0};
  for (size_t d = 0; d < shape.size(); ++d) {
    if (orthogonal.rows >> d & 1) size.rows *= shape[d];
    if (orthogonal.columns >> d & 1) size.columns *= shape[d];
  }
  const int64_t longer = std::max(size.rows, size.columns),
                shorter = std::min(size.rows, size.columns);
  const auto l = static_cast<double>(longer), s = static_cast<double>(shorter);
  // A multiplication and an addition, twice, for each element of column j and each
  // element of the reflections 0 … j.
  size.operations = 4 * ((l - s) * s * (s + 1) / 2 + s * (s + 1) * (2 * s + 1) / 6);
  // The f32 numbers of the matrix and of the reflections' vectors.
  size.bytes = 4 * (l * s + l * s - s * s / 2);
  return size;
}

double LargestMagnitude(const Distribution& distribution) {
  return std::visit(Largest(), distribution);
}

std::string InText(const Distribution& distribution) {
  return std::visit(
      Overloaded{
          [](const Constant& c) { return fmt::format("constant {}", c.value); },
          [](const Uniform& u) { return fmt::format("uniform {} to {}", u.low, u.high); },
          [](const Normal& n) { return fmt::format("normal mean {} std {}", n.mean, n.std); },
          [](const TruncatedNormal& t) {
            return fmt::format("truncated_normal mean {} std {} low {} high {}", t.mean, t.std,
                               t.low, t.high);
          },
          [](const Expression& e) { return "expr " + e.program->text; },
          [](const Orthogonal& o) { return fmt::format("orthogonal gain {}", o.gain); },
          [](const Sparse& s) { return fmt::format("sparse std {} zeros {}", s.std, s.zeros); },
          [](const Normalized& n) {
            return fmt::format("normalized axis {} length {}", n.axis, n.length);
          },
      },
      distribution);
}

std::string MatrixInText(const Distribution& distribution, const Shape& shape) {
  if (const auto* orthogonal = std::get_if<Orthogonal>(&distribution)) {
    const OrthogonalSize size = SizeOf(*orthogonal, shape);
    std::string text =
        fmt::format("{} × {}, rows of {}, columns of {}", size.rows, size.columns,
                    DimensionsInText(orthogonal->rows), DimensionsInText(orthogonal->columns));
    for (size_t d = 0; d < shape.size(); ++d) {
      if ((orthogonal->rows | orthogonal->columns) >> d & 1) continue;
      text += fmt::format(", at {} of dimension {}", (shape[d] - 1) / 2, d);
    }
    return text;
  }
  if (const auto* sparse = std::get_if<Sparse>(&distribution)) {
    return fmt::format("{} × {}, in each column {} zeros of {}", shape[0], shape[1], sparse->zeros,
                       shape[0]);
  }
  if (const auto* normalized = std::get_if<Normalized>(&distribution)) {
    const int64_t elements = shape[static_cast<size_t>(normalized->axis)];
    return fmt::format("{} vectors of {} elements, along dimension {}",
                       ElementCount(shape) / elements, elements, normalized->axis);
  }
  return {};
}

}  // namespace shardinit
