// Stored tensors that are assembled from drawn ones.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/variant.h"
#include "graph/graph.h"
#include "tensor/arrangement.h"

namespace shardinit {

// std::monostate is a list that is not given. Apply() replaces it with the operation's own list.
using ViewArgument = Variant<int64_t, double, std::vector<int64_t>, std::monostate>;

struct ViewParameter {
  std::string_view name;
  std::string_view description;  // a phrase for editors
  enum Kind { kInteger, kNumber, kIntegers } kind;
  std::optional<ViewArgument> default_value;  // none: required
};

// An error in an operation's arguments or operands.
struct ViewProblem {
  std::string message, hint;
  int parameter = -1;  // -1: the tensors are wrong
};

// An operand or result: its arrangement, and the shardings that apply unless the spec overrides
// them.
struct Viewed {
  Arrangement arrangement;
  PartitionSpec partition;
  std::vector<bool> in_doubt;  // dimensions that its tensors shard differently
  std::string name;            // its first tensor, for messages
  bool pins_in_doubt = false;  // its tensors are on different ranks
};

// An operation that specs and plans may name; a row of the table in view.cc.
struct ViewOperation {
  std::string_view name;
  std::string_view description;
  std::vector<ViewParameter> parameters;
  bool many;  // takes a list of tensors
  // Takes arguments in the order of the parameters. Replaces positions that count from the end by
  // positions that count from the start.
  std::optional<Viewed> (*apply)(std::vector<Viewed> of, std::vector<ViewArgument>& arguments,
                                 PieceBudget* budget, ViewProblem* problem);
};

const std::vector<ViewOperation>& ViewOperations();
const ViewOperation* FindViewOperation(std::string_view name);

// A view as written, with evaluated expressions.
struct ViewNode {
  const ViewOperation* operation = nullptr;  // null: a drawn tensor as it is
  size_t tensor = 0;                         // index in `drawn`
  Shape shape = {};                          // of an operation's result
  std::vector<ViewArgument> arguments;
  std::vector<ViewNode> of;
};

struct View {
  std::shared_ptr<const std::vector<Tensor>> drawn;
  ViewNode root;
  std::vector<Piece> pieces;  // sources are indices in `drawn`
};

// The maximum nesting of operations; plan.json has three levels for each.
inline constexpr int kMaxViewDepth = 8;

// The maximum number of pieces of all views of a layout together, including intermediate results.
// It bounds time and memory.
inline constexpr PieceBudget kMaxPieces = 4 << 20;

Viewed ViewedTensor(size_t index, const Tensor& tensor);

// Applies the operation. The number of tensors and the kinds of arguments must be right. On
// failure, returns nothing, and *problem is the reason.
std::optional<Viewed> Apply(const ViewOperation& operation, std::vector<Viewed> of,
                            std::vector<ViewArgument>& arguments, PieceBudget* budget,
                            ViewProblem* problem);

// Returns whether both arrange the same tensors by the same operations.
bool AreEqual(const View& a, const View& b);

// Returns whether a tensor, drawn or stored, consists only of buffers.
bool IsBuffer(const Tensor& tensor);
// Returns how many of its numbers are trained: all, or none if it is a buffer.
int64_t ParametersOf(const Tensor& tensor);

// Return text for people: `stack axis=1 of layers.0.w and 31 more`, and only its ` axis=1`.
std::string Describe(const View& view);
std::string DescribeArguments(const ViewNode& node);

}  // namespace shardinit
