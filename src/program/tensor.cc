#include "program/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "graph/stored/view.h"
#include "program/drawn.h"
#include "program/encode.h"

namespace shardinit::program {
namespace {

using Indices = std::vector<Word64>;  // an element's index along each dimension
using Nodes = std::vector<const ViewNode*>;

// Describes a node of a view, without distinguishing tensors of one kind at its leaves.
std::string KindOfNode(const std::vector<Tensor>& drawn, const ViewNode& node) {
  if (node.operation == nullptr) return KindOf(drawn[node.tensor]);
  std::string kind = fmt::format("{}{}(", node.operation->name, DescribeArguments(node));
  for (const ViewNode& of : node.of) kind += KindOfNode(drawn, of) + ",";
  return kind + ")";
}

// Consecutive operands of a node that are of one kind, and so are written once.
struct Series {
  size_t first, end;

  int64_t count() const { return static_cast<int64_t>(end - first); }
  // Returns the operands of all nodes, which are alike.
  Nodes OperandsOf(const Nodes& nodes) const {
    Nodes operands;
    for (const ViewNode* node : nodes) {
      for (size_t i = first; i < end; ++i) operands.push_back(&node->of[i]);
    }
    return operands;
  }
};

std::vector<Series> SeriesOf(const std::vector<Tensor>& drawn, const ViewNode& node) {
  std::vector<Series> all;
  std::string last;
  for (size_t i = 0; i < node.of.size(); ++i) {
    std::string kind = KindOfNode(drawn, node.of[i]);
    if (i == 0 || kind != last) all.push_back({i, i});
    ++all.back().end;
    last = std::move(kind);
  }
  return all;
}

int64_t Integer(const ViewNode& node, size_t argument) {
  return std::get<int64_t>(node.arguments[argument]);
}

const Shape& ShapeOf(const std::vector<Tensor>& drawn, const ViewNode& node) {
  return node.operation == nullptr ? drawn[node.tensor].shape() : node.shape;
}

// Writes a view as operations on an element's indices. Each element is computed from its own index
// in its drawn tensor, wherever it is stored, so no device needs the results of another device.
//
// Nodes that differ only in the tensors at their leaves, such as the layers of a stack, are written
// once. An additional index, `row`, selects the node: it is the row of its table.
class ViewWriter {
 public:
  ViewWriter(const std::vector<Tensor>& drawn, DType dtype, Function* out)
      : drawn_(drawn), dtype_(dtype), out_(out) {}

  Value Write(const Nodes& nodes, const Word64& row, Indices at) {
    const ViewNode& node = *nodes.front();
    if (node.operation == nullptr) return WriteLeaves(nodes, row, at);
    const std::string_view name = node.operation->name;
    if (name == "stack") {
      const auto axis = Integer(node, 0);
      const Word64 place = at[axis];
      at.erase(at.begin() + axis);
      const std::vector<int64_t> ones(node.of.size(), 1);
      return WriteSeries(nodes, row, at, place, ones, [&](Indices&, const Word64&, int64_t) {});
    }
    if (name == "concat") {
      const auto axis = Integer(node, 0);
      return WriteSeries(nodes, row, at, at[axis], ExtentsOf(node, axis, 1),
                         [&](Indices& in, const Word64& index, int64_t) { in[axis] = index; });
    }
    if (name == "interleave") {
      const auto axis = Integer(node, 0), groups = Integer(node, 1);
      const std::vector<int64_t> extents = ExtentsOf(node, axis, groups);
      int64_t all = 0;
      for (const int64_t extent : extents) all += extent;
      const Word64 group = at[axis] / all, within = at[axis] % all;
      return WriteSeries(nodes, row, at, within, extents,
                         [&](Indices& in, const Word64& index, int64_t extent) {
                           in[axis] = group * extent + index;
                         });
    }
    Nodes of;
    for (const ViewNode* each : nodes) of.push_back(&each->of.front());
    const Shape before = ShapeOf(drawn_, *of.front());
    if (name == "transpose") {
      const auto& axes = std::get<std::vector<int64_t>>(node.arguments[0]);
      const Indices in = at;
      for (size_t d = 0; d < axes.size(); ++d) at[axes[d]] = in[d];
      return Write(of, row, at);
    }
    if (name == "reshape") return Write(of, row, Reshaped(at, ShapeOf(drawn_, node), before));
    const auto axis = Integer(node, 0);
    if (name == "slice") {
      at[axis] = at[axis] + Integer(node, 1);
      return Write(of, row, at);
    }
    Check(name == "pad", "an operation of views that programs do not know");
    const Flag inside = at[axis] < Word64(before[axis]);
    at[axis] = Select<Word64>(inside, at[axis], 0);
    return ChooseBetween(inside, Write(of, row, at),
                         ConstantOf(*out_, std::get<double>(node.arguments[2]), dtype_));
  }

 private:
  Value ChooseBetween(const Flag& condition, Value yes, Value no) {
    if (condition.is_constant()) return condition.constant() ? yes : no;
    return out_->Select(condition.value(), yes, no);
  }

  std::vector<int64_t> ExtentsOf(const ViewNode& node, int64_t axis, int64_t groups) const {
    std::vector<int64_t> extents;
    for (const ViewNode& of : node.of) extents.push_back(ShapeOf(drawn_, of)[axis] / groups);
    return extents;
  }

  // Writes the nodes' operands, which follow one another along `place` with these extents. `enter`
  // receives the index along the operand and turns indices into the operand's indices.
  template <typename Enter>
  Value WriteSeries(const Nodes& nodes, const Word64& row, const Indices& at, const Word64& place,
                    const std::vector<int64_t>& extents, Enter enter) {
    const ViewNode& node = *nodes.front();
    std::optional<Value> value;
    int64_t start = 0;
    for (const Series& series : SeriesOf(drawn_, node)) {
      const int64_t extent = extents[series.first], count = series.count();
      const bool alone = count == std::ssize(node.of);
      // Outside the series, any valid index is acceptable.
      Word64 index = place - start;
      if (!alone) {
        const Flag inside = (index < Word64(extent * count));
        index = Select<Word64>(inside, index, 0);
      }
      Indices in = at;
      const Word64 within = extent == 1 ? Word64(0) : count == 1 ? index : index % extent;
      enter(in, within, extent);
      const Word64 number = count == 1 ? Word64(0) : index / extent;
      const Value made = Write(series.OperandsOf(nodes), row * count + number, in);
      value = value ? ChooseBetween(place < Word64(start), *value, made) : made;
      start += extent * count;
    }
    return *value;
  }

  Indices Reshaped(const Indices& at, const Shape& from, const Shape& to) const {
    // Unchanged dimensions at either end need no arithmetic.
    Indices out(to.size(), Word64(0));
    size_t head = 0, tail = 0;
    const size_t both = std::min(from.size(), to.size());
    for (; head < both && from[head] == to[head]; ++head) out[head] = at[head];
    for (; head + tail < both && from[from.size() - 1 - tail] == to[to.size() - 1 - tail]; ++tail) {
      out[to.size() - 1 - tail] = at[at.size() - 1 - tail];
    }
    Word64 linear = 0;
    for (size_t d = head; d < from.size() - tail; ++d) linear = linear * from[d] + at[d];
    for (size_t d = to.size() - tail; d-- > head;) {
      out[d] = d == head ? linear : linear % to[d];
      if (d > head) linear = linear / to[d];
    }
    return out;
  }

  Value WriteLeaves(const Nodes& nodes, const Word64& row, const Indices& at) {
    std::vector<const Tensor*> tensors;
    for (const ViewNode* node : nodes) tensors.push_back(&drawn_[node->tensor]);
    return WriteDrawnTensors(tensors, row, at, out_);
  }

  const std::vector<Tensor>& drawn_;
  DType dtype_;
  Function* out_;
};

Value WriteElements(const Tensor& tensor, const Box& box, Function* out) {
  Indices at;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    at.push_back(tensor.shape()[d] == 1
                     ? Word64(0)
                     : Word64(out, out->Iota(static_cast<int>(d))) + Word64(box.offset[d]));
  }
  if (!tensor.view()) return WriteDrawnTensors({&tensor}, 0, at, out);
  const View& view = *tensor.view();
  return ViewWriter(*view.drawn, tensor.dtype(), out).Write({&view.root}, 0, at);
}

// Collects the tables in the order in which a ViewWriter visits the leaves.
void CollectTables(const std::vector<Tensor>& drawn, const Nodes& nodes,
                   std::vector<Table>* tables) {
  const ViewNode& node = *nodes.front();
  if (node.operation == nullptr) {
    std::vector<const Tensor*> tensors;
    for (const ViewNode* each : nodes) tensors.push_back(&drawn[each->tensor]);
    Table table = TableOf(tensors);
    if (table.columns > 0) tables->push_back(std::move(table));
    return;
  }
  for (const Series& series : SeriesOf(drawn, node)) {
    CollectTables(drawn, series.OperandsOf(nodes), tables);
  }
}

}  // namespace

TensorParts PartsOf(Arithmetic arithmetic, const Tensor& tensor, const Box& box) {
  TensorParts parts;
  parts.kind = fmt::format("{} {} {} {} {} ", InfoOf(tensor.dtype()).name,
                           static_cast<int>(arithmetic), tensor.shape(), box.offset, box.shape);
  if (!tensor.view()) {
    parts.kind += KindOf(tensor);
    Table table = TableOf({&tensor});
    if (table.columns > 0) parts.tables.push_back(std::move(table));
  } else {
    const View& view = *tensor.view();
    parts.kind += KindOfNode(*view.drawn, view.root);
    CollectTables(*view.drawn, {&view.root}, &parts.tables);
  }
  return parts;
}

WrittenFunction WriteFunction(Arithmetic arithmetic, bool partitioned, const Tensor& tensor,
                              const Box& box, std::string_view name) {
  Function out(box.shape, arithmetic, partitioned);
  const Value stored = WriteElements(tensor, box, &out);
  const Value whole = out.Spread(stored, out.whole());
  return {out.Finish(name, out.Bitcast(whole, tensor.dtype())), out.needs_zero()};
}

}  // namespace shardinit::program
