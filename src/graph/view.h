// Stored tensors that are put together from drawn ones.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/graph.h"
#include "tensor/arrangement.h"

namespace shardinit {

using ViewArgument = std::variant<int64_t, double, std::vector<int64_t>>;

struct ViewParameter {
  std::string_view name;
  std::string_view description;  // For editors: a phrase.
  enum Kind { kInteger, kNumber, kIntegers } kind;
  std::optional<ViewArgument> default_value;  // None: it must be given.
};

// What is wrong with an operation's arguments.
struct ViewProblem {
  std::string message, hint;
  int parameter = -1;  // -1: it is the tensors.
};

// A tensor at work: how it is arranged, and how it is cut if nothing else is said.
struct Viewed {
  Arrangement arrangement;
  PartitionSpec partition;
  std::vector<bool> in_doubt;  // Dimensions that its tensors cut differently.
  std::string name;            // For messages: its first tensor.
  bool pins_in_doubt = false;  // Its tensors are on different ranks.
};

// An operation that specs and plans may name: a row of the table in view.cc.
struct ViewOperation {
  std::string_view name;
  std::string_view description;
  std::vector<ViewParameter> parameters;
  bool many;  // Takes a list of tensors.
  // Arguments stand in the order of the parameters; positions in them that are
  // counted from the end are replaced by those from the start.
  std::optional<Viewed> (*apply)(std::vector<Viewed> of, std::vector<ViewArgument>& arguments,
                                 PieceBudget* budget, ViewProblem* problem);
};

const std::vector<ViewOperation>& ViewOperations();
const ViewOperation* FindViewOperation(std::string_view name);
std::vector<std::string> ViewOperationNames();

// A view as it was written, with its numbers.
struct ViewNode {
  const ViewOperation* operation = nullptr;  // Null: a drawn tensor, as it is.
  size_t tensor = 0;                         // Its index in `drawn`.
  std::vector<ViewArgument> arguments;
  std::vector<ViewNode> of;
};

struct View {
  std::shared_ptr<const std::vector<Tensor>> drawn;
  ViewNode root;
  std::vector<Piece> pieces;  // Sources are indices in `drawn`.
};

// Operations within operations, at most; plan.json has three levels for each.
inline constexpr int kMaxViewDepth = 8;

// Of all views of a layout together, those that operations make on the way included: what bounds
// time and memory.
inline constexpr PieceBudget kMaxPieces = 4 << 20;

Viewed ViewedTensor(size_t index, const Tensor& tensor);

// The operation on tensors whose number and whose arguments' kinds are right.
// None: *problem says why.
std::optional<Viewed> Apply(const ViewOperation& operation, std::vector<Viewed> of,
                            std::vector<ViewArgument>& arguments, PieceBudget* budget,
                            ViewProblem* problem);

// Whether both are of the same tensors, arranged by the same operations.
bool AreEqual(const View& a, const View& b);

// Whether a tensor, drawn or stored, is made of buffers alone.
bool IsBuffer(const Tensor& tensor);
// How many of its elements are trained: all, or those of a buffer none.
int64_t ParametersOf(const Tensor& tensor);

// For people: `stack axis=1 of layers.0.w and 31 more`, and of that ` axis=1`.
std::string Describe(const View& view);
std::string DescribeArguments(const ViewNode& node);

}  // namespace shardinit
