#include "graph/stored/view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/diagnostics.h"
#include "base/overloaded.h"
#include "base/table.h"

namespace shardinit {
namespace {

using Arguments = std::vector<ViewArgument>;

std::string Text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }
const Shape& ShapeOf(const Viewed& viewed) { return viewed.arrangement.shape; }

Reported Wrong(ViewProblem* problem, int parameter, std::string message, std::string hint = {}) {
  *problem = {std::move(message), std::move(hint), parameter};
  return {};
}

// Binds argument 0 to one of `rank` dimensions.
bool BindAxis(int64_t rank, const Shape& shape, Arguments& arguments, ViewProblem* problem) {
  int64_t& axis = std::get<int64_t>(arguments[0]);
  if (axis >= -rank && axis < rank) {
    axis += axis < 0 ? rank : 0;
    return true;
  }
  return Wrong(problem, 0,
               fmt::format("axis {} is out of range: the shape is {}", axis, Text(shape)),
               rank == 0 ? "a scalar has no axes" : fmt::format("use {} to {}", -rank, rank - 1));
}

// Merges tensors that are placed side by side. A dimension that all of them shard alike stays
// sharded.
Viewed MergeSideBySide(const std::vector<Viewed>& of) {
  const Viewed& first = of.front();
  Viewed out{{}, first.partition, first.in_doubt, first.name, first.pins_in_doubt};
  for (const Viewed& viewed : of) {
    for (size_t d = 0; d < out.partition.dimensions.size(); ++d) {
      if (viewed.partition.dimensions[d] == out.partition.dimensions[d] && !viewed.in_doubt[d])
        continue;
      out.in_doubt[d] = true;
      out.partition.dimensions[d] = {};
    }
    out.pins_in_doubt |= viewed.partition.pins != out.partition.pins || viewed.pins_in_doubt;
  }
  return out;
}

std::vector<Arrangement> Arrangements(std::vector<Viewed> of) {
  std::vector<Arrangement> arrangements;
  for (Viewed& viewed : of) arrangements.push_back(std::move(viewed.arrangement));
  return arrangements;
}

bool FitsAlong(int64_t axis, const Shape& a, const Shape& b) {
  if (a.size() != b.size()) return false;
  for (size_t d = 0; d < a.size(); ++d) {
    if (static_cast<int64_t>(d) != axis && a[d] != b[d]) return false;
  }
  return true;
}

std::optional<Viewed> ApplyStack(std::vector<Viewed> of, Arguments& arguments, PieceBudget* budget,
                                 ViewProblem* problem) {
  const Shape shape = ShapeOf(of.front());
  for (const Viewed& viewed : of) {
    if (ShapeOf(viewed) == shape) continue;
    return Wrong(problem, -1,
                 fmt::format("`stack` needs tensors of one shape, but `{}` is {} and `{}` {}",
                             of.front().name, Text(shape), viewed.name, Text(ShapeOf(viewed))));
  }
  if (!BindAxis(std::ssize(shape) + 1, shape, arguments, problem)) return {};
  if (shape.size() == kMaxRank) return Wrong(problem, -1, "more than 32 dimensions");
  const auto axis = std::get<int64_t>(arguments[0]);
  Viewed out = MergeSideBySide(of);
  out.partition.dimensions.emplace(out.partition.dimensions.begin() + axis);
  out.in_doubt.insert(out.in_doubt.begin() + axis, false);
  int64_t elements;
  if (__builtin_mul_overflow(ElementCount(shape), std::ssize(of), &elements)) {
    return Wrong(problem, -1, "this tensor has more than 2^63 - 1 elements");
  }
  out.arrangement = Stack(Arrangements(std::move(of)), static_cast<size_t>(axis), budget);
  return out;
}

// Checks that the tensors fit along the axis in argument 0, and that their elements can be counted.
bool BindConcat(std::string_view name, const std::vector<Viewed>& of, Arguments& arguments,
                ViewProblem* problem) {
  const Shape& shape = ShapeOf(of.front());
  if (!BindAxis(std::ssize(shape), shape, arguments, problem)) return false;
  const auto axis = std::get<int64_t>(arguments[0]);
  int64_t elements = 0;
  for (const Viewed& viewed : of) {
    if (!FitsAlong(axis, shape, ShapeOf(viewed))) {
      return Wrong(problem, -1,
                   fmt::format("`{}` along axis {} needs shapes that differ only in that axis, but "
                               "`{}` is {} and `{}` {}",
                               name, axis, of.front().name, Text(shape), viewed.name,
                               Text(ShapeOf(viewed))));
    }
    if (__builtin_add_overflow(elements, ElementCount(ShapeOf(viewed)), &elements)) {
      return Wrong(problem, -1, "this tensor has more than 2^63 - 1 elements");
    }
  }
  return true;
}

std::optional<Viewed> ApplyConcat(std::vector<Viewed> of, Arguments& arguments, PieceBudget* budget,
                                  ViewProblem* problem) {
  if (!BindConcat("concat", of, arguments, problem)) return {};
  Viewed out = MergeSideBySide(of);
  out.arrangement = Concat(Arrangements(std::move(of)),
                           static_cast<size_t>(std::get<int64_t>(arguments[0])), budget);
  return out;
}

std::optional<Viewed> ApplyInterleave(std::vector<Viewed> of, Arguments& arguments,
                                      PieceBudget* budget, ViewProblem* problem) {
  if (!BindConcat("interleave", of, arguments, problem)) return {};
  const auto axis = static_cast<size_t>(std::get<int64_t>(arguments[0]));
  const auto groups = std::get<int64_t>(arguments[1]);
  if (groups < 1)
    return Wrong(problem, 1, fmt::format("`groups` is {}, but must be at least 1", groups));
  for (const Viewed& viewed : of) {
    if (ShapeOf(viewed)[axis] % groups == 0) continue;
    return Wrong(problem, 1,
                 fmt::format("{} groups do not divide axis {} of `{}`, which is {}", groups, axis,
                             viewed.name, Text(ShapeOf(viewed))));
  }
  if (ShapeOf(of.front()).size() == kMaxRank) return Wrong(problem, -1, "more than 31 dimensions");
  Viewed out = MergeSideBySide(of);
  out.arrangement = Interleave(Arrangements(std::move(of)), axis, groups, budget);
  return out;
}

std::optional<Viewed> ApplyTranspose(std::vector<Viewed> of, Arguments& arguments,
                                     PieceBudget* budget, ViewProblem* problem) {
  Viewed& in = of.front();
  const int64_t rank = std::ssize(ShapeOf(in));
  if (std::holds_alternative<std::monostate>(arguments[0])) {
    auto& reversed = arguments[0].emplace<std::vector<int64_t>>();
    for (int64_t d = rank; d-- > 0;) reversed.push_back(d);
  }
  auto& axes = std::get<std::vector<int64_t>>(arguments[0]);
  std::set<int64_t> different;
  for (int64_t& axis : axes) {
    if (axis >= -rank && axis < rank) different.insert(axis += axis < 0 ? rank : 0);
  }
  if (std::ssize(axes) != rank || std::ssize(different) != rank) {
    return Wrong(problem, 0,
                 fmt::format("{} is not an order of the {} dimension{} of `{}`, which is {}",
                             Text(axes), rank, rank == 1 ? "" : "s", in.name, Text(ShapeOf(in))),
                 "list each dimension once, or leave `axes` out to reverse their order");
  }
  Viewed out{{}, {}, {}, in.name, in.pins_in_doubt};
  out.partition.pins = in.partition.pins;
  for (const int64_t axis : axes) {
    out.partition.dimensions.push_back(in.partition.dimensions[static_cast<size_t>(axis)]);
    out.in_doubt.push_back(in.in_doubt[static_cast<size_t>(axis)]);
  }
  out.arrangement = Transpose(std::move(in.arrangement), axes, budget);
  return out;
}

std::optional<Viewed> ApplyReshape(std::vector<Viewed> of, Arguments& arguments, PieceBudget*,
                                   ViewProblem* problem) {
  Viewed& in = of.front();
  const auto& shape = std::get<std::vector<int64_t>>(arguments[0]);
  const Shape before = ShapeOf(in);
  if (shape.size() > kMaxRank) return Wrong(problem, 0, "more than 32 dimensions");
  int64_t elements = 1;
  bool fits = true;
  for (const int64_t extent : shape) {
    fits = fits && extent >= 1 && !__builtin_mul_overflow(elements, extent, &elements);
  }
  if (!fits || elements != ElementCount(before)) {
    return Wrong(problem, 0,
                 fmt::format("`{}` is {}, which has {} elements, so it cannot be {}", in.name,
                             Text(before), ElementCount(before), Text(shape)));
  }
  Viewed out{
      {}, PartitionSpec(shape.size()), std::vector<bool>(shape.size()), in.name, in.pins_in_doubt};
  out.partition.pins = in.partition.pins;
  // Equal leading and trailing dimensions stay sharded.
  const size_t both = std::min(shape.size(), before.size());
  size_t kept = 0;
  for (; kept < both && shape[kept] == before[kept]; ++kept) {
    out.partition.dimensions[kept] = in.partition.dimensions[kept];
    out.in_doubt[kept] = in.in_doubt[kept];
  }
  for (size_t e = 1; kept + e <= both && shape[shape.size() - e] == before[before.size() - e];
       ++e) {
    out.partition.dimensions[shape.size() - e] = in.partition.dimensions[before.size() - e];
    out.in_doubt[shape.size() - e] = in.in_doubt[before.size() - e];
  }
  out.arrangement = Reshape(std::move(in.arrangement), shape);
  return out;
}

std::optional<Viewed> ApplyPad(std::vector<Viewed> of, Arguments& arguments, PieceBudget* budget,
                               ViewProblem* problem) {
  Viewed out = std::move(of.front());
  const Shape& shape = ShapeOf(out);
  if (!BindAxis(std::ssize(shape), shape, arguments, problem)) return {};
  const auto axis = static_cast<size_t>(std::get<int64_t>(arguments[0]));
  const auto to = std::get<int64_t>(arguments[1]);
  if (to < shape[axis]) {
    return Wrong(problem, 1,
                 fmt::format("`to` is {}, but axis {} of `{}`, which is {}, is longer", to, axis,
                             out.name, Text(shape)));
  }
  int64_t elements;
  if (__builtin_mul_overflow(ElementCount(shape) / shape[axis], to, &elements)) {
    return Wrong(problem, 1, "this tensor has more than 2^63 - 1 elements");
  }
  out.arrangement =
      Pad(std::move(out.arrangement), axis, to, std::get<double>(arguments[2]), budget);
  return out;
}

std::optional<Viewed> ApplySlice(std::vector<Viewed> of, Arguments& arguments, PieceBudget* budget,
                                 ViewProblem* problem) {
  Viewed out = std::move(of.front());
  const Shape& shape = ShapeOf(out);
  if (!BindAxis(std::ssize(shape), shape, arguments, problem)) return {};
  const auto axis = static_cast<size_t>(std::get<int64_t>(arguments[0]));
  const auto start = std::get<int64_t>(arguments[1]), stop = std::get<int64_t>(arguments[2]);
  if (start < 0 || start >= stop || stop > shape[axis]) {
    return Wrong(problem, start < 0 ? 1 : 2,
                 fmt::format("{} to {} is not a part of axis {} of `{}`, which is {}", start, stop,
                             axis, out.name, Text(shape)));
  }
  out.arrangement = Slice(std::move(out.arrangement), axis, start, stop, budget);
  return out;
}

constexpr auto kInteger = ViewParameter::kInteger;
constexpr auto kNumber = ViewParameter::kNumber;
constexpr auto kIntegers = ViewParameter::kIntegers;

size_t CountTensors(const ViewNode& node) {
  if (node.operation == nullptr) return 1;
  size_t count = 0;
  for (const ViewNode& of : node.of) count += CountTensors(of);
  return count;
}

}  // namespace

const std::vector<ViewOperation>& ViewOperations() {
  static const ViewParameter kAxis = {
      "axis", "the dimension, from the end if negative", kInteger, {}};
  static const std::vector<ViewOperation> rows = {
      {"stack", "tensors of one shape along a new dimension", {kAxis}, true, ApplyStack},
      {"concat", "one tensor after another along a dimension", {kAxis}, true, ApplyConcat},
      {"interleave",
       "tensors along a dimension, interleaved in parts",
       {kAxis, {"groups", "the number of parts of each tensor", kInteger, {}}},
       true,
       ApplyInterleave},
      {"transpose",
       "dimensions in another order",
       {{"axes", "the order; default: reversed", kIntegers, std::monostate()}},
       false,
       ApplyTranspose},
      {"reshape",
       "the same elements, in the same order, in another shape",
       {{"shape", "the size of each dimension", kIntegers, {}}},
       false,
       ApplyReshape},
      {"pad",
       "a dimension made longer by a constant at its end",
       {kAxis, {"to", "its new size", kInteger, {}}, {"value", "the constant", kNumber, 0.0}},
       false,
       ApplyPad},
      {"slice",
       "a part of a dimension",
       {kAxis,
        {"start", "its first index", kInteger, int64_t{0}},
        {"stop", "the index after its last", kInteger, {}}},
       false,
       ApplySlice},
  };
  return rows;
}

const ViewOperation* FindViewOperation(std::string_view name) {
  return FindNamed(ViewOperations(), name);
}

Viewed ViewedTensor(size_t index, const Tensor& tensor) {
  return {WholeTensor(static_cast<int64_t>(index), tensor.shape()), tensor.partition(),
          std::vector<bool>(tensor.shape().size()), std::string(tensor.path()), false};
}

std::optional<Viewed> Apply(const ViewOperation& operation, std::vector<Viewed> of,
                            std::vector<ViewArgument>& arguments, PieceBudget* budget,
                            ViewProblem* problem) {
  auto out = operation.apply(std::move(of), arguments, budget, problem);
  if (out && *budget <= 0) {
    return Wrong(problem, -1, fmt::format("the layout falls into more than {} pieces", kMaxPieces),
                 "reshape along the boundaries of concatenated or padded tensors");
  }
  return out;
}

std::string DescribeArguments(const ViewNode& node) {
  std::string text;
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    text += fmt::format(" {}=", node.operation->parameters[i].name);
    text += std::visit(Overloaded{
                           [](const std::vector<int64_t>& integers) { return Text(integers); },
                           [](std::monostate) { return std::string("default"); },
                           [](auto number) { return fmt::format("{}", number); },
                       },
                       node.arguments[i]);
  }
  return text;
}

namespace {

bool AreEqualNodes(const ViewNode& a, const std::vector<Tensor>& drawn_a, const ViewNode& b,
                   const std::vector<Tensor>& drawn_b) {
  if (a.operation != b.operation || a.arguments != b.arguments || a.of.size() != b.of.size())
    return false;
  if (a.operation == nullptr) return drawn_a[a.tensor].path() == drawn_b[b.tensor].path();
  for (size_t i = 0; i < a.of.size(); ++i) {
    if (!AreEqualNodes(a.of[i], drawn_a, b.of[i], drawn_b)) return false;
  }
  return true;
}

}  // namespace

bool AreEqual(const View& a, const View& b) {
  return AreEqualNodes(a.root, *a.drawn, b.root, *b.drawn);
}

bool IsBuffer(const Tensor& tensor) {
  if (!tensor.view()) return tensor.is_buffer();
  const View& view = *tensor.view();
  return std::ranges::all_of(view.pieces, [&](const Piece& piece) {
    return piece.source == Piece::kPadding ||
           (*view.drawn)[static_cast<size_t>(piece.source)].is_buffer();
  });
}

int64_t ParametersOf(const Tensor& tensor) { return IsBuffer(tensor) ? 0 : tensor.numbers(); }

std::string Describe(const View& view) {
  const ViewNode* node = &view.root;
  std::string text;
  for (; node->operation != nullptr; node = &node->of.front()) {
    text += fmt::format("{}{}{}", text.empty() ? "" : " of ", node->operation->name,
                        DescribeArguments(*node));
  }
  if (!text.empty()) text += " of ";
  text += (*view.drawn)[node->tensor].path();
  const size_t others = CountTensors(view.root) - 1;
  return others == 0 ? text : fmt::format("{} and {} more", text, others);
}

}  // namespace shardinit
