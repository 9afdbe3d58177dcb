// Writes a function of a StableHLO module, operation by operation.
//
// The function computes the elements of a box, its domain. A value may vary along only some
// dimensions of the domain: an index along dimension 0 is one number for each row, and a key is one
// number for all elements. Each value records the dimensions over which it varies, and its type has
// only these. An operation on several values varies over the dimensions of all of them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit::program {

// The form of operations on f32 numbers, chosen so that no compiler changes their results.
enum class Arithmetic : uint8_t {
  // f32 operations. The bits of each result are ORed with an argument that is 0, whose value
  // compilers do not know, so they cannot fuse or reorder operations. Square roots and quotients,
  // which compilers for accelerators approximate, are corrected (rounding.h).
  kSingle,
  // f64 operations, each rounded to f32 by reduce_precision.
  kDouble,
};

// Bit d represents dimension d of the domain.
using Over = uint64_t;

struct Value {
  int64_t id = -1;  // the operation whose result this is, or -1 for a constant
  DType element = DType::boolean;
  Over over = 0;
  uint64_t bits = 0;  // a constant's bits; a constant adapts to any dimensions

  bool is_constant() const { return id < 0; }
};

// Returns `tensor<16x8xf32>`. `element` is the type of the elements.
std::string TypeText(const Shape& shape, DType element);

class Function {
 public:
  // The function's arguments are %zero, if needed, and the added ones. With `partitioned`, XLA
  // shards the domain over devices.
  Function(Shape domain, Arithmetic arithmetic, bool partitioned);

  Arithmetic arithmetic() const { return arithmetic_; }
  const Shape& domain() const { return domain_; }
  Over whole() const { return (Over{1} << domain_dimensions_) - 1; }

  // Adds a table of words as an argument and returns its name.
  std::string AddArgument(const Shape& shape);
  // Adds a dimension after the dimensions of the domain, for intermediate values.
  int AddDimension(int64_t extent);

  Value Constant(DType element, uint64_t bits) const { return {-1, element, 0, bits}; }
  // Returns the argument that is 0, as this type.
  Value Zero(DType element);
  // Returns the same 0 as a value that compilers cannot know to be constant over these dimensions.
  Value ZeroOver(Over over, DType element);
  bool needs_zero() const { return needs_zero_; }

  // Returns 0, 1, 2, … along a dimension. In a partitioned function, two dimensions of the same
  // extent get two values. Otherwise compilers would merge the values into one, which cannot have
  // both shardings, and devices would gather its missing parts.
  Value Iota(int dimension);
  // Applies `stablehlo.<operation>` to each element.
  Value Elementwise(std::string_view operation, std::span<const Value> operands, DType element,
                    std::string_view attribute = {});
  Value Elementwise(std::string_view operation, std::initializer_list<Value> operands,
                    DType element, std::string_view attribute = {}) {
    return Elementwise(operation, std::span(operands.begin(), operands.size()), element, attribute);
  }
  Value Compare(std::string_view direction, Value a, Value b, std::string_view kind);
  Value Select(Value condition, Value yes, Value no);
  Value Convert(Value value, DType element);  // converts the number
  Value Bitcast(Value value, DType element);  // keeps the bits
  // Returns the same value over more dimensions.
  Value Spread(Value value, Over over);
  // Returns table[row][column] of an argument of two dimensions. `row` is ui64.
  Value TableElement(const std::string& argument, Value row, int64_t column);
  // Returns a word of the table by its number, counted through all rows.
  Value TableWord(const std::string& argument, Value word);
  // Works along an added dimension. Returns the value, ui64, that has `place` numbers before it in
  // sorted order.
  Value SortedElement(Value value, int dimension, int64_t place);
  // Runs the body `count` times with the step's number, ui64, and the state. The body returns the
  // new state, with the same types.
  template <typename Body>
  std::vector<Value> Repeat(int64_t count, std::vector<Value> state, Body body) {
    BeginRepeat(count, &state);
    const std::vector<Value> in(state.begin() + 1, state.end());
    return EndRepeat(body(state[0], in));
  }

  // Returns the function `func.func private @<name>(…)`, whose result has the type of the domain.
  std::string Finish(std::string_view name, Value result);

 private:
  using ConstantKey = std::tuple<DType, Over, uint64_t>;
  struct Repetition {
    int64_t first_result;
    std::vector<Value> state;
    std::string body_before;
    std::map<ConstantKey, int64_t> constants;
    std::map<std::pair<int64_t, Over>, int64_t> spread;
  };

  void BeginRepeat(int64_t count, std::vector<Value>* state);
  std::vector<Value> EndRepeat(std::vector<Value> next);
  std::string TypeOf(Value value) const { return TypeText(ShapeOver(value.over), value.element); }
  Shape ShapeOver(Over over) const;
  // Returns the value's name, after spreading the value over these dimensions.
  std::string Name(Value value, Over over);
  Value Add(std::string_view text, DType element, Over over);
  // Returns vector[place] from a vector of words.
  Value Gather(int64_t vector, const std::string& type, Value place);

  Shape domain_;  // with the added dimensions
  size_t domain_dimensions_;
  Arithmetic arithmetic_;
  bool partitioned_;
  std::vector<std::string> argument_types_;
  std::vector<Shape> argument_shapes_;
  bool needs_zero_ = false;
  Value zero32_, zero64_;
  int64_t next_ = 0;
  std::string body_;
  // Existing values, which are reused.
  std::map<ConstantKey, int64_t> constants_;
  std::map<std::pair<int64_t, Over>, int64_t> spread_;
  std::map<int, Value> iotas_;
  std::vector<Repetition> repetitions_;
};

}  // namespace shardinit::program
