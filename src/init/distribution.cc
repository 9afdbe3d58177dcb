#include "init/distribution.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "base/overloaded.h"
#include "init/sampled.h"

namespace shardinit {
namespace {

struct Largest {
  double operator()(const Constant& c) const { return std::fabs(c.value); }
  double operator()(const Uniform& u) const {
    return std::max(std::fabs(u.low), std::fabs(u.high));
  }
  double operator()(const Normal& n) const { return std::fabs(n.mean) + 7 * n.std; }
  double operator()(const OneOf<Expression, FromFile, FromSource, RowsLike, Norm> auto&) const {
    return 0;
  }
  double operator()(const Parts& p) const {
    double largest = 0;
    for (const Part& part : p.of->parts) {
      largest = std::max(largest, LargestMagnitude(part.distribution));
    }
    return largest;
  }
  double operator()(const Orthogonal& o) const { return std::fabs(o.gain); }
  double operator()(const Sparse& s) const { return 7 * s.std; }
  double operator()(const Normalized& n) const { return n.length; }
  double operator()(const TruncatedNormal& t) const {
    const double sigmas = std::max(std::fabs(t.low), std::fabs(t.high));
    return std::fabs(t.mean) + std::min(7.0, sigmas) * t.std;
  }
};

// Returns `dimension 0` or `dimensions 1, 2, 3`.
std::string DimensionsInText(DimensionSet set) {
  const std::vector<int64_t> dimensions = DimensionsOf(set);
  return fmt::format("dimension{} {}", dimensions.size() == 1 ? "" : "s",
                     fmt::join(dimensions, ", "));
}

std::string ValueInText(const OneOf<double, int64_t> auto& value) {
  return fmt::format("{}", value);
}
std::string ValueInText(const DimensionSet& set) { return DimensionsInText(set); }
std::string ValueInText(const ProgramPtr& program) { return program->text; }
std::string ValueInText(const std::string& text) { return text; }
std::string ValueInText(const PartsPtr& of) {
  std::string text;
  for (const Part& part : of->parts) {
    text += fmt::format("{}{} of {}", text.empty() ? "[" : ", ", part.length,
                        InText(part.distribution));
  }
  return text + "]";
}
std::string ValueInText(const std::vector<ProgramPtr>& programs) {
  std::string text;
  for (const ProgramPtr& program : programs) {
    text += (text.empty() ? "[" : ", ") + program->text;
  }
  return text.empty() ? text : text + "]";
}

}  // namespace

std::vector<int64_t> DimensionsOf(DimensionSet set) {
  std::vector<int64_t> dimensions;
  for (int64_t d = 0; d < 32; ++d) {
    if (set >> d & 1) dimensions.push_back(d);
  }
  return dimensions;
}

OrthogonalSize SizeOf(const Orthogonal& orthogonal, const Shape& shape) {
  OrthogonalSize size{1, 1, 0, 0};
  for (size_t d = 0; d < shape.size(); ++d) {
    if (orthogonal.rows >> d & 1) size.rows *= shape[d];
    if (orthogonal.columns >> d & 1) size.columns *= shape[d];
  }
  const int64_t longer = std::max(size.rows, size.columns),
                shorter = std::min(size.rows, size.columns);
  const auto l = static_cast<double>(longer), s = static_cast<double>(shorter);
  // For each element of column j and each element of the reflections 0 … j, there is a
  // multiplication and an addition, twice.
  size.operations = 4 * ((l - s) * s * (s + 1) / 2 + s * (s + 1) * (2 * s + 1) / 6);
  // Memory contains the f32 numbers of the matrix and of the reflections' vectors.
  size.bytes = 4 * (l * s + l * s - s * s / 2);
  return size;
}

double LargestMagnitude(const Distribution& distribution) {
  return std::visit(Largest(), distribution);
}

std::string InText(const Distribution& distribution) {
  return std::visit(
      [](const auto& each) {
        std::string text(each.kName);
        ForEachMember(each, [&](const auto& member, const auto& value) {
          if (member.words == nullptr) return;
          const std::string in_text = ValueInText(value);
          if (in_text.empty()) return;
          if (*member.words != '\0') text.append(" ").append(member.words);
          text.append(" ").append(in_text);
        });
        return text;
      },
      distribution);
}

std::string MatrixInText(const Distribution& distribution, const Shape& shape) {
  return std::visit(
      Overloaded{
          [&](const Orthogonal& o) {
            const OrthogonalSize size = SizeOf(o, shape);
            std::string text =
                fmt::format("{} × {}, rows of {}, columns of {}", size.rows, size.columns,
                            DimensionsInText(o.rows), DimensionsInText(o.columns));
            for (size_t d = 0; d < shape.size(); ++d) {
              if ((o.rows | o.columns) >> d & 1) continue;
              text += fmt::format(", at {} of dimension {}", (shape[d] - 1) / 2, d);
            }
            return text;
          },
          [&](const Sparse& s) {
            return fmt::format("{} × {}, in each column {} zeros of {}", shape[0], shape[1],
                               s.zeros, shape[0]);
          },
          [&](const Normalized& n) {
            const int64_t elements = shape[static_cast<size_t>(n.axis)];
            return fmt::format("{} vectors of {} elements, along dimension {}",
                               ElementCount(shape) / elements, elements, n.axis);
          },
          [](const OneOf<Constant, Uniform, Normal, TruncatedNormal, Expression, FromFile,
                         FromSource, RowsLike, Parts, Norm> auto&) { return std::string(); },
      },
      distribution);
}

int64_t DrawsOf(const Distribution& distribution) {
  return std::visit(
      Overloaded{
          [](const OneOf<Constant, FromFile, FromSource, Norm> auto&) -> int64_t { return 0; },
          [](const RowsLike& r) -> int64_t { return r.std > 0 ? 1 : 0; },
          [](const Parts& p) -> int64_t {
            int64_t draws = 0;
            for (const Part& part : p.of->parts) draws += DrawsOf(part.distribution);
            return draws;
          },
          [](const Sampled auto&) -> int64_t { return 1; },
          [](const OneOf<Orthogonal, Normalized> auto&) -> int64_t { return 1; },
          [](const Sparse&) -> int64_t { return 2; },  // a value and a place
          [](const Expression& e) -> int64_t {
            return std::ssize(e.program->draws) + std::ssize(e.program->placed);
          },
      },
      distribution);
}

bool IsSame(const PartsPtr& a, const PartsPtr& b) {
  return std::ranges::equal(a->parts, b->parts, [](const Part& x, const Part& y) {
    return x.length == y.length && x.distribution == y.distribution;
  });
}

bool AreIdentical(const Distribution& a, const Distribution& b) {
  constexpr auto same = Overloaded{
      [](double x, double y) { return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y); },
      [](const auto& x, const auto& y) { return x == y; }};
  return a.index() == b.index() &&
         std::visit(
             [&]<typename D>(const D& x) {
               const D& y = *std::get_if<D>(&b);
               bool is_same = true;
               ForEachMember(x, [&](const auto& member, const auto& value) {
                 is_same = is_same && same(value, y.*member.place);
               });
               if constexpr (requires { x.data; }) is_same = is_same && x.data == y.data;
               if constexpr (requires { x.file; }) is_same = is_same && x.file == y.file;
               return is_same;
             },
             a);
}

void ForEachSource(const Distribution& distribution,
                   const std::function<void(const std::string& source, const std::string& tensor,
                                            const SourceTensorPtr& data)>& visit) {
  std::visit(Overloaded{
                 [&](const OneOf<FromSource, RowsLike> auto& of) {
                   visit(of.source, of.tensor, of.data);
                   if constexpr (requires { of.index; }) {
                     for (const ProgramPtr& program : of.index) {
                       ForEachSource(Expression{program}, visit);
                     }
                   }
                 },
                 [&](const Expression& e) {
                   for (const Program::SourceCall& call : e.program->sources) {
                     visit(call.source, call.tensor, call.data);
                   }
                 },
                 [&](const Parts& p) {
                   for (const Part& part : p.of->parts) ForEachSource(part.distribution, visit);
                 },
                 [](const OneOf<Constant, Uniform, Normal, TruncatedNormal, Orthogonal, Sparse,
                                Normalized, FromFile, Norm> auto&) {},
             },
             distribution);
}

}  // namespace shardinit
