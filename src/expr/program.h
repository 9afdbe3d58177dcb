// Compiles an expression over elements, `init: {expr: …}`, to a program. Names are resolved,
// constants are folded, and each step works on a tile of elements.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expr/elementary.h"
#include "expr/expr.h"
#include "expr/functions.h"
#include "tensor/source.h"

namespace shardinit {

struct Program {
  // Everything that determines the values: the expression with every variable and size replaced by
  // its number, constant parts computed, and dimensions by position. Parsing and compiling this
  // text produces the same program again.
  std::string text;

  // Each slot holds a tile. The following slots are filled before the code runs.
  using Slot = uint16_t;
  struct Literal {
    Slot slot;
    double value;
  };
  struct Index {
    Slot slot;
    int dimension;  // With kLinear, the slot holds the row-major index in the tensor.
  };
  struct Drawn {  // The position in `draws` is the number of the draw.
    Slot slot;
    Draw draw;
  };
  static constexpr int kLinear = -1;
  std::vector<Literal> literals;
  std::vector<Index> indices;
  std::vector<Drawn> draws;

  struct PlacedCall {
    const PlacedFunction* function;
    Slot out, element;
    size_t before;                // The call runs before this instruction of `code`.
    std::vector<double> numbers;  // the other arguments
  };
  std::vector<PlacedCall> placed;

  struct SourceCall {  // takes elements of an existing tensor, or a number of all of them
    SourceNumber number;
    std::string source, tensor;
    SourceTensorPtr data;     // null in a plan that was read from a file
    std::vector<Slot> index;  // of an element
    Slot out;                 // A number of all elements is set before the code runs.
    size_t before;            // as in PlacedCall
    size_t placed_before;     // how many of `placed` run before the call
  };
  std::vector<SourceCall> sources;

  // True if frameworks may round some of these numbers, or results computed from them, differently.
  bool inexact = false;

  struct Instruction {
    ElementOp op;
    Slot out, a, b, c;  // If the operation has fewer operands, b and c equal a.
  };
  std::vector<Instruction> code;
  Slot slots = 0, result = 0;
};

// Finds a tensor of `source`: `tensor` as written, or the current tensor's name if `tensor` is
// null. If the source lacks it, reports that at `place` and returns nothing.
struct FoundSource {
  std::string tensor;
  SourceTensorPtr data;
};
using SourceFinder = std::function<std::optional<FoundSource>(
    const std::string& source, const std::string* tensor, const Span& place)>;

// Compiles an expression for a tensor of `shape` whose dimensions have the names `axes` (which may
// be empty, as may each name). `constants` are the spec's variables. Reports errors at their place
// in the expression and returns null.
std::shared_ptr<const Program> Compile(const Expr& expr, std::span<const int64_t> shape,
                                       std::span<const std::string> axes, const Scope& constants,
                                       Diagnostics& diagnostics,
                                       const SourceFinder& find_source = nullptr);

// Returns the program with this `text`, or null if the text is not canonical.
std::shared_ptr<const Program> CompileCanonical(std::string_view text,
                                                std::span<const int64_t> shape);

// Returns whether the name is known in every expression over elements: `row`, `i0`, `n1`.
bool IsElementName(std::string_view name);

}  // namespace shardinit
