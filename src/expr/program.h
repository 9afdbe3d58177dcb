// An expression over elements, `init: {expr: …}`, made ready to run: names are
// resolved, constants folded, and each step works on a tile of elements.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expr/elementary.h"
#include "expr/expr.h"
#include "tensor/dtype.h"

namespace shardinit {

enum class Draw : uint8_t { kNormal, kUniform, kBits };

struct Program {
  // The whole of what decides the values: the expression with every variable
  // and size replaced by its number, constant parts computed, dimensions by
  // position. Parsing and compiling it gives this program again.
  std::string text;

  // Slots hold a tile each. These are filled before the code runs.
  using Slot = uint16_t;
  struct Literal {
    Slot slot;
    double value;
  };
  struct Index {
    Slot slot;
    int dimension;  // kLinear: the row-major index in the tensor.
  };
  struct Drawn {  // Their place in `draws` is the number of the draw.
    Slot slot;
    Draw draw;
  };
  static constexpr int kLinear = -1;
  std::vector<Literal> literals;
  std::vector<Index> indices;
  std::vector<Drawn> draws;

  // Numbers by their place: in the stream of torch_cpu, or among those of a key of jax_threefry.
  enum class PlacedKind : uint8_t {
    kUniform,
    kNormal,
    kPairs,  // Normal numbers of memory that is not contiguous: two at a time, however many.
    kTruncatedNormal,
    kInteger,
    kWord,
    kPermutation,
    kJaxBits,
    kJaxUniform,
    kJaxNormal,
    kJaxTruncatedNormal,
  };
  struct PlacedFunction {
    PlacedKind kind;
    DType dtype;  // That it draws in.
  };
  struct PlacedCall {
    PlacedFunction function;
    Slot out, element;
    size_t before;                // It is made before this instruction of `code`.
    std::vector<double> numbers;  // The other arguments.
  };
  std::vector<PlacedCall> placed;
  // Of such numbers functions are taken that PyTorch rounds in a way of its own.
  bool inexact = false;

  struct Instruction {
    ElementOp op;
    Slot out, a, b, c;  // b and c are `a` where the operation takes fewer.
  };
  std::vector<Instruction> code;
  Slot slots = 0, result = 0;
};

// For a tensor of `shape` whose dimensions have the names `axes` (an empty name
// or no names: none). `constants` are the spec's variables. Reports what is
// wrong at its place in the expression and returns null.
std::shared_ptr<const Program> Compile(const Expr& expr, std::span<const int64_t> shape,
                                       std::span<const std::string> axes, const Scope& constants,
                                       Diagnostics& diagnostics);

// The program whose `text` this is; null if there is none.
std::shared_ptr<const Program> CompileCanonical(std::string_view text,
                                                std::span<const int64_t> shape);

// Whether every expression over elements knows the name: `row`, `i0`, `n1`.
bool IsElementName(std::string_view name);

}  // namespace shardinit
