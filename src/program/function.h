// A function of a StableHLO module, written operation by operation.
//
// It computes the elements of a box, its domain. A value need not vary along all dimensions of the
// domain: an index along dimension 0 is one number for each row, and a key one for all elements. So
// each value says over which it does, its type has these dimensions alone, and an operation on
// several is over those of all of them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tensor/box.h"

namespace shardinit::program {

// Element types of StableHLO, as it writes them.
enum class Element : uint8_t {
  kI1,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kBf16,
  kF16,
  kF32,
  kF64,
  kF8E4M3Fn,
  kF8E5M2,
};
std::string_view NameOf(Element element);
int BytesOf(Element element);

// In what form operations of f32 numbers are written, so that no compiler changes their results.
enum class Arithmetic : uint8_t {
  // As f32 operations; the bits of each result are XORed with an argument that is 0, which no
  // compiler knows: so it cannot fuse or reorder them.
  kSingle,
  // As f64 operations, each rounded to f32 by reduce_precision.
  kDouble,
};

// Bit d stands for dimension d of the domain.
using Over = uint64_t;

struct Value {
  int64_t id = -1;  // Of the operation that it is the result of; -1: a constant.
  Element element = Element::kI1;
  Over over = 0;
  uint64_t bits = 0;  // Of a constant, which is over what is asked for.

  bool is_constant() const { return id < 0; }
};

// `tensor<16x8xf32>`.
std::string TypeText(const Shape& shape, Element element);

class Function {
 public:
  // Arguments are %zero, if asked for, and those that are added. `partitioned`: XLA cuts the domain
  // over devices.
  Function(Shape domain, Arithmetic arithmetic, bool partitioned);

  Arithmetic arithmetic() const { return arithmetic_; }
  const Shape& domain() const { return domain_; }
  Over whole() const { return (Over{1} << domain_dimensions_) - 1; }
  int64_t ElementsOver(Over over) const;

  // An argument that is a tensor of its own shape, and its name.
  std::string AddArgument(const Shape& shape, Element element);
  // One more dimension behind those of the domain, for steps on the way.
  int AddDimension(int64_t extent);

  Value Constant(Element element, uint64_t bits) const { return {-1, element, 0, bits}; }
  // The argument that is 0, as of this type.
  Value Zero(Element element);
  // The same, as a value that is not known to be one number over these dimensions.
  Value ZeroOver(Over over, Element element);
  bool needs_zero() const { return needs_zero_; }

  // 0, 1, 2, … along a dimension. Where the function is partitioned, those of two dimensions of one
  // extent are two values: compilers would take them for one, which cannot be cut as both are, and
  // devices would gather what they lack of it.
  Value Iota(int dimension);
  // `stablehlo.<operation>` on each element.
  Value Elementwise(std::string_view operation, std::span<const Value> operands, Element element,
                    std::string_view attribute = {});
  Value Elementwise(std::string_view operation, std::initializer_list<Value> operands,
                    Element element, std::string_view attribute = {}) {
    return Elementwise(operation, std::span(operands.begin(), operands.size()), element, attribute);
  }
  Value Compare(std::string_view direction, Value a, Value b, std::string_view kind);
  Value Select(Value condition, Value yes, Value no);
  Value Convert(Value value, Element element);  // Numbers.
  Value Bitcast(Value value, Element element);  // Bits.
  // The same value, over more dimensions.
  Value Spread(Value value, Over over);
  // table[row][column] of an argument of two dimensions; row is ui64.
  Value Take(const std::string& argument, Value row, int64_t column);
  // The same of all rows one after another, by the number of the word.
  Value TakeFlat(const std::string& argument, Value word);
  // Along a dimension that was added: that which has `place` numbers before it when they are
  // sorted, ui64.
  Value Nth(Value value, int dimension, int64_t place);
  // Runs the body `count` times with the step's number, ui64, and the state, whose values it
  // returns anew, of the same types.
  template <typename Body>
  std::vector<Value> Repeat(int64_t count, std::vector<Value> state, Body body) {
    BeginRepeat(count, &state);
    const std::vector<Value> in(state.begin() + 1, state.end());
    return EndRepeat(body(state[0], in));
  }

  // The result as a function, `func.func private @<name>(…)`. Its type is that of the domain.
  std::string Finish(std::string_view name, Value result);
  const std::vector<std::string>& argument_types() const { return argument_types_; }

 private:
  using ConstantKey = std::tuple<Element, Over, uint64_t>;
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
  // Its name, made to be over these dimensions.
  std::string Name(Value value, Over over);
  Value Add(std::string_view text, Element element, Over over);
  // vector[place], of a vector of words.
  Value Gather(int64_t vector, const std::string& type, Value place);

  Shape domain_;  // With the added dimensions.
  size_t domain_dimensions_;
  Arithmetic arithmetic_;
  bool partitioned_;
  std::vector<std::string> argument_types_;
  std::vector<Shape> argument_shapes_;
  bool needs_zero_ = false;
  Value zero32_, zero64_;
  int64_t next_ = 0;
  std::string body_;
  // What is there already.
  std::map<ConstantKey, int64_t> constants_;
  std::map<std::pair<int64_t, Over>, int64_t> spread_;
  std::map<int, Value> iotas_;
  std::vector<Repetition> repetitions_;
};

}  // namespace shardinit::program
