#include "program/function.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace shardinit::program {
namespace {

// Returns the name of the element type in StableHLO.
std::string NameInText(DType element) {
  const DTypeInfo& info = InfoOf(element);
  if (info.kind == DTypeKind::kBool) return "i1";
  if (info.kind == DTypeKind::kSigned) return fmt::format("i{}", 8 * info.bytes);
  if (info.kind == DTypeKind::kUnsigned) return fmt::format("ui{}", 8 * info.bytes);
  if (element == DType::f8e4m3fn) return "f8E4M3FN";
  if (element == DType::f8e5m2) return "f8E5M2";
  return std::string(info.name);
}

// Returns one element of a splat in MLIR's syntax: floats by their bits.
std::string ConstantText(DType element, uint64_t bits) {
  const DTypeInfo& info = InfoOf(element);
  if (info.kind == DTypeKind::kBool) return bits != 0 ? "true" : "false";
  if (info.kind == DTypeKind::kUnsigned) return fmt::format("{}", bits);
  if (info.is_float()) return fmt::format("0x{:0{}X}", bits, 2 * info.bytes);
  const int above = 64 - 8 * info.bytes;  // the bits before the sign
  return fmt::format("{}", static_cast<int64_t>(bits << above) >> above);
}

}  // namespace

std::string TypeText(const Shape& shape, DType element) {
  std::string text = "tensor<";
  for (const int64_t extent : shape) text += fmt::format("{}x", extent);
  return text + NameInText(element) + ">";
}

Function::Function(Shape domain, Arithmetic arithmetic, bool partitioned)
    : domain_(std::move(domain)),
      domain_dimensions_(domain_.size()),
      arithmetic_(arithmetic),
      partitioned_(partitioned) {}

std::string Function::AddArgument(const Shape& shape) {
  argument_types_.push_back(TypeText(shape, DType::u32));
  argument_shapes_.push_back(shape);
  return fmt::format("%a{}", argument_types_.size() - 1);
}

int Function::AddDimension(int64_t extent) {
  domain_.push_back(extent);
  return static_cast<int>(domain_.size()) - 1;
}

Shape Function::ShapeOver(Over over) const {
  Shape shape;
  for (size_t d = 0; d < domain_.size(); ++d) {
    if (over >> d & 1) shape.push_back(domain_[d]);
  }
  return shape;
}

Value Function::Add(std::string_view text, DType element, Over over) {
  body_ += fmt::format("    %{} = stablehlo.{}\n", next_, text);
  return {next_++, element, over};
}

std::string Function::Name(Value value, Over over) {
  if (!value.is_constant()) return fmt::format("%{}", Spread(value, over).id);
  const auto [it, is_new] = constants_.try_emplace({value.element, over, value.bits}, next_);
  if (is_new) {
    Add(fmt::format("constant dense<{}> : {}", ConstantText(value.element, value.bits),
                    TypeText(ShapeOver(over), value.element)),
        value.element, over);
  }
  return fmt::format("%{}", it->second);
}

Value Function::Spread(Value value, Over over) {
  if (value.is_constant() || value.over == over) return value;
  const auto [it, is_new] = spread_.try_emplace({value.id, over}, next_);
  if (is_new) {
    std::vector<int> dimensions;  // positions of the value's dimensions among the result's
    int place = 0;
    for (size_t d = 0; d < domain_.size(); ++d) {
      if (value.over >> d & 1) dimensions.push_back(place);
      place += static_cast<int>(over >> d & 1);
    }
    Add(fmt::format("broadcast_in_dim %{}, dims = [{}] : ({}) -> {}", value.id,
                    fmt::join(dimensions, ", "), TypeOf(value),
                    TypeText(ShapeOver(over), value.element)),
        value.element, over);
  }
  return {it->second, value.element, over};
}

Value Function::Zero(DType element) {
  // The zeros are defined outside of repetitions, so that all of them can use the zeros.
  if (!needs_zero_) {
    needs_zero_ = true;
    std::string& outer = repetitions_.empty() ? body_ : repetitions_.front().body_before;
    zero32_ = {next_++, DType::u32, 0};
    zero64_ = {next_++, DType::u64, 0};
    outer = fmt::format(
                "    %{} = stablehlo.convert %zero : tensor<ui32>\n"
                "    %{} = stablehlo.convert %zero : (tensor<ui32>) -> tensor<ui64>\n",
                zero32_.id, zero64_.id) +
            outer;
  }
  return element == DType::u32 ? zero32_ : zero64_;
}

Value Function::ZeroOver(Over over, DType element) {
  Value zero = Zero(element);
  for (size_t d = 0; d < domain_.size(); ++d) {
    // Compilers know that the index along a dimension of one element is 0.
    if ((over >> d & 1) == 0 || domain_[d] == 1) continue;
    zero = Elementwise("and", {zero, Convert(Iota(static_cast<int>(d)), element)}, element);
  }
  return zero;
}

Value Function::Iota(int dimension) {
  const auto it = iotas_.find(dimension);
  if (it != iotas_.end()) return it->second;
  Check(repetitions_.empty(), "an index that is first wanted in a repetition");
  const Over over = Over{1} << dimension;
  Value iota = Add(fmt::format("iota dim = 0 : {}", TypeText(ShapeOver(over), DType::u64)),
                   DType::u64, over);
  const auto twins = std::count(domain_.begin(), domain_.begin() + dimension, domain_[dimension]);
  if (partitioned_ && twins > 0) {
    const Value number = Constant(DType::u64, static_cast<uint64_t>(twins));
    const Value zero = Elementwise("multiply", {Zero(DType::u64), number}, DType::u64);
    iota = Elementwise("add", {iota, zero}, DType::u64);
  }
  return iotas_[dimension] = iota;
}

Value Function::Elementwise(std::string_view operation, std::span<const Value> operands,
                            DType element, std::string_view attribute) {
  Over over = 0;
  for (const Value& operand : operands) over |= operand.over;
  std::vector<std::string> names, types;
  bool same = true;
  for (const Value& operand : operands) {
    names.push_back(Name(operand, over));
    types.push_back(TypeText(ShapeOver(over), operand.element));
    same = same && operand.element == element;
  }
  const std::string type = TypeText(ShapeOver(over), element);
  return Add(fmt::format("{} {}{} : {}", operation, fmt::join(names, ", "), attribute,
                         same ? type : fmt::format("({}) -> {}", fmt::join(types, ", "), type)),
             element, over);
}

Value Function::Compare(std::string_view direction, Value a, Value b, std::string_view kind) {
  const Over over = a.over | b.over;
  const std::string in = TypeText(ShapeOver(over), a.element);
  const std::string name_a = Name(a, over), name_b = Name(b, over);
  return Add(fmt::format("compare {}, {}, {}, {} : ({}, {}) -> {}", direction, name_a, name_b, kind,
                         in, in, TypeText(ShapeOver(over), DType::boolean)),
             DType::boolean, over);
}

Value Function::Select(Value condition, Value yes, Value no) {
  const Over over = condition.over | yes.over | no.over;
  const std::string names[] = {Name(condition, over), Name(yes, over), Name(no, over)};
  return Add(fmt::format("select {} : {}, {}", fmt::join(names, ", "),
                         TypeText(ShapeOver(over), DType::boolean),
                         TypeText(ShapeOver(over), yes.element)),
             yes.element, over);
}

Value Function::Convert(Value value, DType element) {
  return value.element == element ? value : Elementwise("convert", {value}, element);
}

Value Function::Bitcast(Value value, DType element) {
  return value.element == element ? value : Elementwise("bitcast_convert", {value}, element);
}

Value Function::TableElement(const std::string& argument, Value row, int64_t column) {
  constexpr DType kWord = DType::u32;
  const size_t number = std::stoul(argument.substr(2));
  const std::string& type = argument_types_[number];
  const int64_t rows = argument_shapes_[number][0];
  // The slice is the column, or one element of it.
  const int64_t first = row.is_constant() ? static_cast<int64_t>(row.bits) : 0;
  const Shape shape = {row.is_constant() ? 1 : rows, 1};
  const Value slice =
      Add(fmt::format("slice {} [{}:{}, {}:{}] : ({}) -> {}", argument, first, first + shape[0],
                      column, column + 1, type, TypeText(shape, kWord)),
          kWord, 0);
  const std::string flat_type = row.is_constant() ? TypeText({}, kWord) : TypeText({rows}, kWord);
  const Value flat =
      Add(fmt::format("reshape %{} : ({}) -> {}", slice.id, TypeText(shape, kWord), flat_type),
          kWord, 0);
  return row.is_constant() ? flat : Gather(flat.id, flat_type, row);
}

Value Function::TableWord(const std::string& argument, Value word) {
  const size_t number = std::stoul(argument.substr(2));
  const std::string type = TypeText({ElementCount(argument_shapes_[number])}, DType::u32);
  const Value flat =
      Add(fmt::format("reshape {} : ({}) -> {}", argument, argument_types_[number], type),
          DType::u32, 0);
  return Gather(flat.id, type, Spread(word, word.over));
}

Value Function::Gather(int64_t vector, const std::string& type, Value place) {
  const std::string name = Name(place, place.over);
  body_ += fmt::format(
      "    %{} = \"stablehlo.gather\"(%{}, {}) {{dimension_numbers = "
      "#stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = "
      "{}>, indices_are_sorted = false, slice_sizes = array<i64: 1>}} : ({}, {}) -> {}\n",
      next_, vector, name, std::popcount(place.over), type, TypeOf(place),
      TypeText(ShapeOver(place.over), DType::u32));
  return {next_++, DType::u32, place.over};
}

Value Function::SortedElement(Value value, int dimension, int64_t place) {
  const Over whole = value.over | Over{1} << dimension;
  value = Spread(value, whole);
  const Shape shape = ShapeOver(whole);
  const int along = std::popcount(whole & ((Over{1} << dimension) - 1));
  const std::string type = TypeOf(value);
  body_ += fmt::format(
      "    %{0} = \"stablehlo.sort\"(%{1}) ({{\n"
      "    ^bb0(%x: tensor<ui64>, %y: tensor<ui64>):\n"
      "      %less = stablehlo.compare LT, %x, %y, UNSIGNED : (tensor<ui64>, tensor<ui64>) -> "
      "tensor<i1>\n"
      "      stablehlo.return %less : tensor<i1>\n"
      "    }}) {{dimension = {2} : i64, is_stable = false}} : ({3}) -> {3}\n",
      next_, value.id, along, type);
  const int64_t sorted = next_++;
  std::vector<std::string> ranges;
  Shape one = shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool here = static_cast<int>(d) == along;
    ranges.push_back(here ? fmt::format("{}:{}", place, place + 1) : fmt::format("0:{}", shape[d]));
    if (here) one[d] = 1;
  }
  const Value slice = Add(fmt::format("slice %{} [{}] : ({}) -> {}", sorted,
                                      fmt::join(ranges, ", "), type, TypeText(one, value.element)),
                          value.element, whole);
  const Over over = whole & ~(Over{1} << dimension);
  return Add(fmt::format("reshape %{} : ({}) -> {}", slice.id, TypeText(one, value.element),
                         TypeText(ShapeOver(over), value.element)),
             value.element, over);
}

void Function::BeginRepeat(int64_t count, std::vector<Value>* state) {
  // Names defined in the body are valid only there.
  state->insert(state->begin(), Constant(DType::u64, 0));
  std::vector<std::string> names, types;
  for (const Value& value : *state) {
    names.push_back(Name(value, value.over));
    types.push_back(TypeOf(value));
  }
  Repetition repetition{next_, *state, {}, constants_, spread_};
  next_ += std::ssize(*state);
  std::vector<std::string> arguments;
  for (size_t i = 0; i < state->size(); ++i) {
    (*state)[i].id = next_++;
    arguments.push_back(fmt::format("%{} = {}", (*state)[i].id, names[i]));
  }
  // Results of a while are named individually: %r:2 is %r#0 and %r#1.
  body_ += fmt::format(
      "    %r{}:{} = stablehlo.while({}) : {}\n"
      "    cond {{\n"
      "      %count = stablehlo.constant dense<{}> : tensor<ui64>\n"
      "      %more = stablehlo.compare LT, %{}, %count, UNSIGNED : (tensor<ui64>, tensor<ui64>) -> "
      "tensor<i1>\n"
      "      stablehlo.return %more : tensor<i1>\n"
      "    }} do {{\n",
      repetition.first_result, state->size(), fmt::join(arguments, ", "), fmt::join(types, ", "),
      count, (*state)[0].id);
  repetition.state = *state;
  std::swap(repetition.body_before, body_);
  repetitions_.push_back(std::move(repetition));
}

std::vector<Value> Function::EndRepeat(std::vector<Value> next) {
  const Value one = Constant(DType::u64, 1);
  const Value step = repetitions_.back().state[0];
  next.insert(next.begin(), Elementwise("add", {step, one}, DType::u64));
  std::vector<std::string> names, types;
  for (size_t i = 0; i < next.size(); ++i) {
    const Over over = repetitions_.back().state[i].over;
    names.push_back(Name(next[i], over));
    types.push_back(TypeText(ShapeOver(over), next[i].element));
  }
  Repetition repetition = std::move(repetitions_.back());
  repetitions_.pop_back();
  body_ = repetition.body_before + body_ +
          fmt::format("      stablehlo.return {} : {}\n    }}\n", fmt::join(names, ", "),
                      fmt::join(types, ", "));
  constants_ = std::move(repetition.constants);
  spread_ = std::move(repetition.spread);
  std::vector<Value> results;
  for (size_t i = 1; i < next.size(); ++i) {
    const Value& state = repetition.state[i];
    const std::string type = TypeOf(state);
    body_ += fmt::format("    %{} = stablehlo.reshape %r{}#{} : ({}) -> {}\n", next_,
                         repetition.first_result, i, type, type);
    results.push_back({next_++, state.element, state.over});
  }
  return results;
}

std::string Function::Finish(std::string_view name, Value result) {
  Check(repetitions_.empty(), "a repetition that does not end");
  const std::string out = Name(result, whole());
  std::vector<std::string> arguments;
  if (needs_zero_) arguments.emplace_back("%zero: tensor<ui32>");
  for (size_t i = 0; i < argument_types_.size(); ++i) {
    arguments.push_back(fmt::format("%a{}: {}", i, argument_types_[i]));
  }
  const std::string type = TypeText(ShapeOver(whole()), result.element);
  return fmt::format("  func.func private @{}({}) -> {} {{\n{}    return {} : {}\n  }}\n", name,
                     fmt::join(arguments, ", "), type, body_, out, type);
}

}  // namespace shardinit::program
