// Compiles expressions over elements. The file is long because all steps of an expression share one
// stack.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "base/parse_number.h"
#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "expr/program.h"
#include "expr/tree.h"

namespace shardinit {
namespace {

// Returns 12 for `i12`, if the name begins with `letter`.
std::optional<int> NumberedName(std::string_view name, char letter) {
  if (name.size() < 2 || name.size() > 4 || name[0] != letter) return {};
  if (name[1] == '0' && name.size() > 2) return {};
  return ParseNumber<int>(name.substr(1));
}

// A step's result on the stack.
struct Item {
  std::optional<std::string> constant_text = {};  // text, which can only be compared
  std::optional<double> value;                    // the value if it is already known,
  Program::Slot slot = 0;                         // otherwise the slot that will hold it
  bool temporary = false;                         // The slot is free after this is used.
  bool placed = false;                            // It holds numbers of another framework.
  std::string text;
  Binding power = kAtom;
};

// A possible meaning of a name. Two meanings are a mistake, unless they are the same number or
// index.
struct Meaning {
  std::optional<double> value;
  int dimension = 0;  // the dimension of an index
  std::string what;

  bool SameAs(const Meaning& other) const {
    return value == other.value && (value || dimension == other.dimension);
  }
};

// Returns true if the operation is exact, or if every implementation rounds it once, to nearest.
// Some implementations do not round f32 square roots this way.
bool IsRoundedOnce(ElementOp op) {
  using enum ElementOp;
  static constexpr ElementOp kOnce[] = {
      kNegate,       kAdd,   kSubtract, kMultiply, kDivide, kLess, kLessEqual, kGreater,
      kGreaterEqual, kEqual, kNotEqual, kWhere,    kMin,    kMax,  kClip,      kAbs,
      kFloor,        kMod,   kCeilDiv,  kRoundUp,  kF32,    kBf16, kF16};
  return Contains(kOnce, op);
}

std::string Parenthesized(const Item& item, Binding least) {
  return item.power >= least ? item.text : "(" + item.text + ")";
}

// Resolves names for the tensor that an expression is compiled for, and reports mistakes.
class ElementNames {
 public:
  ElementNames(const Expr& expr, std::span<const int64_t> shape, std::span<const std::string> axes,
               const Scope& constants, Diagnostics& diagnostics)
      : expr_(expr), shape_(shape), axes_(axes), constants_(constants), diagnostics_(diagnostics) {}

  // Returns nothing after reporting a mistake, possibly in the definition of a variable.
  std::optional<Meaning> Find(const Step& step) {
    const std::string name(Text(step));
    std::vector<Meaning> meanings;
    if (!FindMeanings(step, name, &meanings)) return {};
    if (meanings.empty() && constants_.IsBroken(name)) return {};
    if (meanings.empty() && constants_.FindVariable(name, diagnostics_) != nullptr) {
      return Fail(step, fmt::format("{} is a list, but one number is needed here", Quote(name)),
                  fmt::format("write `{}[0]` for its first item, or `len({})`", name, name));
    }
    if (meanings.empty()) {
      return Fail(step, fmt::format("unknown name {}", Quote(name)), Suggest(name));
    }
    for (const Meaning& other : meanings) {
      if (other.SameAs(meanings[0])) continue;
      return Fail(
          step,
          fmt::format("{} has two meanings: {}, and {}", Quote(name), meanings[0].what, other.what),
          IsElementName(name)
              ? "rename the variable or the axis of this name"
              : "write the index by position, `i0`, the size `n0`, or rename the variable");
    }
    return meanings[0];
  }

  // Returns null if the name is not a text or has a second meaning.
  const VarValue* FindText(const Step& step) {
    const std::string name(Text(step));
    if (constants_.Find(name, diagnostics_)) return nullptr;
    const VarValue* constant = constants_.FindVariable(name, diagnostics_);
    return constant == nullptr || constant->is_list ? nullptr : constant;
  }

  // Returns null, and reports it, if the step's name is not a list.
  const VarValue* FindList(const Step& step) {
    const std::string name(expr_.NameOf(step));
    if (constants_.IsBroken(name)) return nullptr;
    const VarValue* constant = constants_.FindVariable(name, diagnostics_);
    if (constant != nullptr && constant->is_list) return constant;
    return Fail(step, fmt::format("{} is not a list", Quote(name)),
                DidYouMean(name, constants_.Names()));
  }

  // Reports a whole number that a double cannot hold, because it would become another number.
  std::optional<double> Exactly(const Step& step, const Value& value, const std::string& what) {
    const double number = ToDouble(value);
    const int64_t* integer = std::get_if<int64_t>(&value);
    if (integer == nullptr ||
        (std::abs(number) < 0x1p63 && static_cast<int64_t>(number) == *integer)) {
      return number;
    }
    return Fail(step, fmt::format("{} is {}, which f64 cannot hold", what, *integer),
                "elements are computed in f64, which holds all whole numbers up to 2^53");
  }

  std::string_view Text(const Step& step) const { return expr_.TextOf(step); }
  Span PlaceOf(const Step& step) const { return expr_.SpanOf(step); }
  std::span<const int64_t> shape() const { return shape_; }

  Reported Fail(const Step& step, std::string message, std::string hint = {}) {
    return diagnostics_.Error(expr_.SpanOf(step), std::move(message), std::move(hint));
  }

  Reported IsText(const Step& step) {
    return Fail(step,
                Quote(Text(step)) +
                    (IsAtom(step) ? " is text, but elements are numbers" : " computes with text"),
                "text can only be compared, by `==` and `!=`");
  }

 private:
  bool FindMeanings(const Step& step, const std::string& name, std::vector<Meaning>* meanings) {
    const int rank = static_cast<int>(shape_.size());
    if (const auto value = constants_.Find(name, diagnostics_)) {
      const auto number = Exactly(step, *value, Quote(name));
      if (!number) return false;
      meanings->push_back({number, 0, fmt::format("the variable of the spec, {}", *number)});
    }
    for (const char letter : {'i', 'n'}) {
      const auto number = NumberedName(name, letter);
      if (!number) continue;
      if (*number >= rank) {
        return Fail(step,
                    fmt::format("the tensor has no dimension {}, only {}", *number, Dimensions()));
      }
      AddDimension(*number, letter == 'n', meanings);
    }
    if (name == "index") {
      meanings->push_back({{}, Program::kLinear, "the row-major index"});
    } else if (name == "row" || name == "col") {
      if (rank >= 2) {
        AddDimension(name == "row" ? rank - 2 : rank - 1, false, meanings);
      } else if (meanings->empty()) {
        return Fail(step,
                    fmt::format("{} needs a tensor of two dimensions or more, but this one has {}",
                                Quote(name), Dimensions()),
                    rank == 1 ? "the index is `i0`" : "");
      }
    }
    constexpr std::string_view kSize = "size_";
    for (int d = 0; d < rank && d < std::ssize(axes_); ++d) {
      if (axes_[d].empty()) continue;
      if (name == axes_[d]) AddDimension(d, false, meanings);
      if (name.starts_with(kSize) && name.substr(kSize.size()) == axes_[d]) {
        AddDimension(d, true, meanings);
      }
    }
    return true;
  }

  void AddDimension(int d, bool size, std::vector<Meaning>* meanings) {
    if (size) {
      meanings->push_back({static_cast<double>(shape_[d]), 0,
                           fmt::format("the size of dimension {}, {}", d, shape_[d])});
    } else {
      meanings->push_back({{}, d, fmt::format("the index in dimension {}", d)});
    }
  }

  std::string Dimensions() const {
    return shape_.size() == 1 ? "1 dimension" : fmt::format("{} dimensions", shape_.size());
  }

  std::string Suggest(const std::string& name) const {
    if (std::string place = constants_.PlaceOf(name); !place.empty()) return place;
    std::vector<std::string> names = constants_.Names();
    names.emplace_back("index");
    for (size_t d = 0; d < shape_.size(); ++d) {
      names.push_back(fmt::format("i{}", d));
      names.push_back(fmt::format("n{}", d));
      if (d >= axes_.size() || axes_[d].empty()) continue;
      names.push_back(axes_[d]);
      names.push_back("size_" + axes_[d]);
    }
    if (shape_.size() >= 2) names.insert(names.end(), {"row", "col"});
    return DidYouMean(name, names);
  }

  const Expr& expr_;
  const std::span<const int64_t> shape_;
  const std::span<const std::string> axes_;
  const Scope& constants_;
  Diagnostics& diagnostics_;
};

// A program under construction, which reuses slots.
struct Code {
  Program::Slot New() { return program.slots++; }

  Program::Slot Temporary() {
    if (free.empty()) return New();
    const Program::Slot slot = free.back();
    free.pop_back();
    return slot;
  }

  void Release(const Item& item) {
    if (item.temporary) free.push_back(item.slot);
  }

  Program::Slot SlotOf(const Item& item) {
    if (!item.value) return item.slot;
    for (const Program::Literal& literal : program.literals) {
      if (std::bit_cast<uint64_t>(literal.value) == std::bit_cast<uint64_t>(*item.value)) {
        return literal.slot;
      }
    }
    program.literals.push_back({New(), *item.value});
    return program.literals.back().slot;
  }

  Program::Slot IndexSlot(int dimension) {
    for (const Program::Index& index : program.indices) {
      if (index.dimension == dimension) return index.slot;
    }
    program.indices.push_back({New(), dimension});
    return program.indices.back().slot;
  }

  // Returns a result that will be computed later.
  Item NewResult(std::string text) {
    Item item;
    item.slot = Temporary();
    item.temporary = true;
    item.text = std::move(text);
    return item;
  }

  // Returns the result of calling this function for these indices.
  Item CallSource(std::string_view function, Program::SourceCall call,
                  const std::vector<Item>& indices) {
    std::string text = fmt::format("{}('{}', '{}'", function, call.source, call.tensor);
    for (const Item& index : indices) {
      text += ", " + index.text;
      call.index.push_back(SlotOf(index));
    }
    for (const Item& index : indices) Release(index);
    call.before = program.code.size();
    call.placed_before = program.placed.size();
    Item item;
    if (call.number == SourceNumber::kElement) {
      item = NewResult(text + ")");
    } else {
      item.slot = New();
      item.text = text + ")";
    }
    call.out = item.slot;
    program.sources.push_back(std::move(call));
    return item;
  }

  Program program = {};
  std::vector<Program::Slot> free = {};
};

// Finds the source and tensor of `source('base', 'w', i0, i1)`. Texts come first, then an index for
// each dimension of the source's tensor, or no indices for the element's own. `source_mean` and
// `source_std` have only texts. Removes the texts from the operands. Returns nothing after
// reporting a mistake.
std::optional<Program::SourceCall> NamedSource(const Step& step, std::vector<Item>& operands,
                                               ElementNames& names,
                                               const SourceFinder& find_source) {
  const auto is_text = [](const Item& item) { return item.constant_text.has_value(); };
  const auto indices = std::ranges::find_if_not(operands, is_text);
  if (std::any_of(indices, operands.end(), is_text)) return names.IsText(step);
  const auto texts = indices - operands.begin();
  const std::string_view function = step.function->name;
  const SourceNumber number = *step.function->of_source;
  if (texts == 0 || texts > 2 ||
      (number != SourceNumber::kElement && texts < std::ssize(operands))) {
    return names.Fail(
        step,
        fmt::format("`{}` takes the name of a source, and optionally the name of a tensor",
                    function),
        number == SourceNumber::kElement
            ? "write it as in `source('base')` or `source('base', 'w', i0, i1)`"
            : fmt::format("write it as in `{0}('base')` or `{0}('base', 'w')`", function));
  }
  Program::SourceCall call{number, *operands[0].constant_text, {}, nullptr, {}, 0, 0, 0};
  if (find_source == nullptr) {
    if (texts < 2) return names.Fail(step, fmt::format("`{}` names no tensor", function));
    call.tensor = *operands[1].constant_text;
  } else {
    const auto found = find_source(call.source, texts < 2 ? nullptr : &*operands[1].constant_text,
                                   names.PlaceOf(step));
    if (!found) return {};
    call.tensor = found->tensor;
    call.data = found->data;
  }
  operands.erase(operands.begin(), indices);
  if (call.data == nullptr) return call;
  const auto shape = call.data->shape();
  if (number != SourceNumber::kElement) {
    if (call.data->elements() > 0) return call;
    return names.Fail(step, fmt::format("{} has no elements", call.data->text()));
  }
  if (!operands.empty() && operands.size() != shape.size()) {
    return names.Fail(step,
                      fmt::format("`source` needs an index for each dimension of [{}], not {}",
                                  fmt::join(shape, ", "), operands.size()),
                      "omit the indices to use the element's own");
  }
  if (operands.empty() && !std::ranges::equal(shape, names.shape())) {
    return names.Fail(
        step,
        fmt::format("{} has the shape [{}], but the tensor has [{}]", call.data->text(),
                    fmt::join(shape, ", "), fmt::join(names.shape(), ", ")),
        "give an index for each dimension of the source, as in `source('base', i0 % 4096, i1)`");
  }
  return call;
}

// Runs the postfix steps on a stack of their results. Each result is a known number, or the slot
// that will hold a tile of numbers.
class Compiler {
 public:
  Compiler(ElementNames names, const SourceFinder& find_source)
      : names_(names), find_source_(find_source) {}

  std::shared_ptr<const Program> Run(const Expr& expr) {
    for (const Step& step : expr.steps) {
      const bool done = step.op == Step::Op::kLiteral  ? Literal(step)
                        : step.op == Step::Op::kText   ? PushText(expr.NameOf(step))
                        : step.op == Step::Op::kName   ? PushName(step)
                        : step.op == Step::Op::kIndex  ? ListItem(step)
                        : step.op == Step::Op::kLength ? Length(step)
                        : step.op == Step::Op::kCall   ? PushCall(step)
                        : step.op == Step::Op::kDecide ? Truth(step, ElementOp::kNotEqual)
                        : step.op == Step::Op::kNot    ? Truth(step, ElementOp::kEqual)
                                                       : PushOperation(step);
      if (!done) return nullptr;
    }
    if (stack_.back().constant_text) {
      names_.IsText(expr.steps.back());
      return nullptr;
    }
    code_.program.result = code_.SlotOf(stack_.back());
    code_.program.text = std::move(stack_.back().text);
    return std::make_shared<const Program>(std::move(code_.program));
  }

 private:
  bool Literal(const Step& step) {
    const auto value = names_.Exactly(step, step.literal, "this number");
    if (value) PushValue(*value);
    return value.has_value();
  }

  bool PushText(std::string_view text) {
    Item item;
    item.constant_text = text;
    stack_.push_back(std::move(item));
    return true;
  }

  bool PushItem(const Step& step, const VarItem& item) {
    if (const auto* text = std::get_if<std::string>(&item)) return PushText(*text);
    const bool is_double = std::holds_alternative<double>(item);
    const auto value = names_.Exactly(
        step, is_double ? Value(std::get<double>(item)) : Value(std::get<int64_t>(item)),
        Quote(names_.Text(step)));
    if (value) PushValue(*value);
    return value.has_value();
  }

  // A list index must be the same for all elements.
  bool ListItem(const Step& step) {
    const Item at = Pop();
    if (at.constant_text) return names_.IsText(step);
    if (!at.value) {
      return names_.Fail(step, fmt::format("the index in {} is not the same for all elements",
                                           Quote(names_.Text(step))));
    }
    const VarValue* list = names_.FindList(step);
    if (list == nullptr) return false;
    const auto index = ExactInteger(*at.value);
    if (index && *index >= 0 && *index < std::ssize(list->items)) {
      return PushItem(step, list->items[static_cast<size_t>(*index)]);
    }
    return names_.Fail(step, fmt::format("{} asks for item {} of {}", Quote(names_.Text(step)),
                                         *at.value, list->items.size()));
  }

  bool Length(const Step& step) {
    const VarValue* list = names_.FindList(step);
    if (list != nullptr) PushValue(static_cast<double>(list->items.size()));
    return list != nullptr;
  }

  bool Compare(const Step& step, const Item& left, const Item& right) {
    const ElementOp op = step.binary->op;
    if (!left.constant_text || !right.constant_text ||
        (op != ElementOp::kEqual && op != ElementOp::kNotEqual)) {
      return names_.IsText(step);
    }
    const bool are_equal = *left.constant_text == *right.constant_text;
    PushValue(are_equal == (op == ElementOp::kEqual) ? 1 : 0);
    return true;
  }

  bool PushName(const Step& step) {
    if (const VarValue* text = names_.FindText(step)) return PushItem(step, text->items[0]);
    const auto meaning = names_.Find(step);
    if (!meaning) return false;
    if (meaning->value) {
      PushValue(*meaning->value);
    } else {
      PushIndex(meaning->dimension);
    }
    return true;
  }

  bool PushOperation(const Step& step) {
    if (step.op == Step::Op::kNegate) {
      const Item a = Pop();
      return Push(step, ElementOp::kNegate, {&a, 1}, "-" + Parenthesized(a, kUnary), kUnary);
    }
    const Operator& symbol = *step.binary;
    const bool is_logical = symbol.power == kAnd || symbol.power == kOr;
    if (is_logical && !Truth(step, ElementOp::kNotEqual)) return false;
    Item operands[2];
    operands[1] = Pop();
    operands[0] = Pop();
    if (operands[0].constant_text || operands[1].constant_text) {
      return Compare(step, operands[0], operands[1]);
    }
    if (is_logical || symbol.op == ElementOp::kMod) return InOldWords(step, operands);
    if (symbol.op == ElementOp::kDivide && operands[1].value == 0) {
      return names_.Fail(step, fmt::format("division by zero in {}", Quote(names_.Text(step))));
    }
    // `a - (b - c)` and `(a < b) < c` keep their parentheses.
    const Binding left = symbol.power == kComparison ? kSum : symbol.power;
    const Binding right = static_cast<Binding>(symbol.power + 1);
    return Push(step, symbol.op, operands,
                fmt::format("{} {} {}", Parenthesized(operands[0], left), symbol.text,
                            Parenthesized(operands[1], right)),
                symbol.power);
  }

  // Compares the last item with 0, which makes it a truth value or the opposite of one. Every
  // version of this program can read the text.
  bool Truth(const Step& step, ElementOp comparison) {
    Item operands[2];
    operands[0] = Pop();
    operands[1].value = 0;
    std::string text = fmt::format("{} {} 0", Parenthesized(operands[0], kSum),
                                   comparison == ElementOp::kEqual ? "==" : "!=");
    return Push(step, comparison, operands, std::move(text), kComparison);
  }

  // Writes `a % b` as `mod(a, b)`, `a and b` as a product and `a or b` as `max(a, b)`.
  bool InOldWords(const Step& step, std::span<const Item> operands) {
    const ElementOp op = step.binary->op;
    if (op == ElementOp::kMultiply) {
      return Push(step, op, operands,
                  fmt::format("{} * {}", Parenthesized(operands[0], kProduct),
                              Parenthesized(operands[1], kUnary)),
                  kProduct);
    }
    return Push(step, op, operands,
                fmt::format("{}({}, {})", op == ElementOp::kMod ? "mod" : "max", operands[0].text,
                            operands[1].text),
                kAtom);
  }

  bool PushCall(const Step& step) {
    const Function& function = *step.function;
    if (function.draw) {
      const Program::Slot slot = code_.New();
      code_.program.draws.push_back({slot, *function.draw});
      Item item;
      item.slot = slot;
      item.text = fmt::format("{}()", function.name);
      stack_.push_back(std::move(item));
      return true;
    }
    std::vector<Item> operands(step.arguments);
    for (size_t i = operands.size(); i-- > 0;) operands[i] = Pop();
    if (function.of_source) return TakeSource(step, operands);
    for (const Item& operand : operands) {
      if (operand.constant_text) return names_.IsText(step);
    }
    if (function.placed) return PlacedCall(step, operands);
    std::string text = fmt::format("{}(", function.name);
    for (size_t i = 0; i < operands.size(); ++i) text += (i == 0 ? "" : ", ") + operands[i].text;
    text += ")";
    if (function.most_arguments >= 0) {
      return Push(step, *function.element, operands, std::move(text), kAtom);
    }
    Item so_far = std::move(operands[0]);
    for (size_t i = 1; i < operands.size(); ++i) {
      Item pair[] = {std::move(so_far), std::move(operands[i])};
      if (!Push(step, *function.element, pair, "", kAtom)) return false;
      so_far = Pop();
    }
    if (!so_far.value) {
      so_far.text = std::move(text);
      so_far.power = kAtom;
    }
    stack_.push_back(std::move(so_far));
    return true;
  }

  // One argument is the number's place; the others are the same for all elements.
  bool PlacedCall(const Step& step, const std::vector<Item>& operands) {
    const Function& function = *step.function;
    const PlacedFunction& placed = *function.placed;
    Program::PlacedCall call = {&placed, 0, 0, code_.program.code.size(), {}};
    std::string text = fmt::format("{}(", function.name);
    for (size_t i = 0; i < operands.size(); ++i) {
      text += (i == 0 ? "" : ", ") + operands[i].text;
      if (i == placed.element) continue;
      const auto& [name, least] = placed.arguments[i];
      if (!operands[i].value) {
        return names_.Fail(
            step, fmt::format("argument {} of {}, {}, is not the same for all elements", i + 1,
                              Quote(function.name), name));
      }
      const double value = *operands[i].value;
      if (least && !(value >= *least && value <= 0x1p53 && std::trunc(value) == value)) {
        return names_.Fail(
            step,
            fmt::format("argument {} of {}, {}, is {}, but must be a whole number from {} to 2^53",
                        i + 1, Quote(function.name), name, value, *least));
      }
      call.numbers.push_back(value);
    }
    const Item& element = operands[placed.element];
    call.element = code_.SlotOf(element);
    code_.Release(element);
    Item item = code_.NewResult(text + ")");
    call.out = item.slot;
    item.placed = true;
    code_.program.placed.push_back(std::move(call));
    code_.program.inexact |= placed.inexact;
    stack_.push_back(std::move(item));
    return true;
  }

  bool TakeSource(const Step& step, std::vector<Item>& operands) {
    auto call = NamedSource(step, operands, names_, find_source_);
    if (!call) return false;
    if (operands.empty() && call->data != nullptr && call->number == SourceNumber::kElement) {
      for (size_t d = 0; d < call->data->shape().size(); ++d) {
        PushIndex(static_cast<int>(d));
        operands.push_back(Pop());
      }
    }
    stack_.push_back(code_.CallSource(step.function->name, *std::move(call), operands));
    return true;
  }

  void PushValue(double value) {
    Item item;
    item.value = value;
    item.text = fmt::format("{}", value);
    item.power = std::signbit(value) ? kUnary : kAtom;
    stack_.push_back(std::move(item));
  }

  void PushIndex(int dimension) {
    Item item;
    item.text = dimension == Program::kLinear ? "index" : fmt::format("i{}", dimension);
    item.slot = code_.IndexSlot(dimension);
    stack_.push_back(std::move(item));
  }

  // If all operands are constant, computes the result now, with the operations that would compute
  // it for each element.
  bool Push(const Step& step, ElementOp op, std::span<const Item> operands, std::string text,
            Binding power) {
    const auto operand = [&](size_t i) -> const Item& {
      return operands[i < operands.size() ? i : 0];
    };
    bool constant = true;
    for (const Item& item : operands) {
      if (item.constant_text) return names_.IsText(step);
      constant &= item.value.has_value();
    }
    if (constant) {
      const double value = Apply(op, *operand(0).value, *operand(1).value, *operand(2).value);
      if (!std::isfinite(value)) {
        return names_.Fail(
            step, fmt::format("{} is {}", Quote(names_.Text(step)),
                              std::isnan(value) ? "not a real number" : "too large for a float"));
      }
      PushValue(value);
      return true;
    }
    const Program::Slot a = code_.SlotOf(operand(0)), b = code_.SlotOf(operand(1)),
                        c = code_.SlotOf(operand(2));
    for (const Item& item : operands) code_.Release(item);
    Item result = code_.NewResult(std::move(text));
    for (const Item& item : operands) result.placed |= item.placed;
    code_.program.inexact |= result.placed && !IsRoundedOnce(op);
    result.power = power;
    code_.program.code.push_back({op, result.slot, a, b, c});
    stack_.push_back(std::move(result));
    return true;
  }

  Item Pop() {
    Item item = std::move(stack_.back());
    stack_.pop_back();
    return item;
  }

  ElementNames names_;
  const SourceFinder& find_source_;
  std::vector<Item> stack_;
  Code code_;
};

}  // namespace

std::shared_ptr<const Program> Compile(const Expr& expr, std::span<const int64_t> shape,
                                       std::span<const std::string> axes, const Scope& constants,
                                       Diagnostics& diagnostics, const SourceFinder& find_source) {
  double elements = 1;
  for (const int64_t extent : shape) elements *= static_cast<double>(extent);
  if (elements > 0x1p53) {
    diagnostics.Error(expr.span,
                      "a tensor of more than 2^53 elements has indices that f64 cannot hold");
    return nullptr;
  }
  auto program = Compiler({expr, shape, axes, constants, diagnostics}, find_source).Run(expr);
  if (program == nullptr) return nullptr;
  // Replacing names by numbers may make the text too long or too deep to parse.
  Diagnostics ignored;
  if (ParseExpr(program->text, {}, ignored) == nullptr) {
    diagnostics.Error(expr.span,
                      fmt::format("with its variables replaced by their numbers this expression is "
                                  "too long ({} bytes) or too deep",
                                  program->text.size()),
                      "compute parts of it under `vars`");
    return nullptr;
  }
  return program;
}

std::shared_ptr<const Program> CompileCanonical(std::string_view text,
                                                std::span<const int64_t> shape) {
  Diagnostics ignored;
  const ExprPtr expr = ParseExpr(text, {}, ignored);
  if (expr == nullptr) return nullptr;
  const LookupScope no_names([](std::string_view) { return std::nullopt; });
  auto program = Compile(*expr, shape, {}, no_names, ignored);
  return program != nullptr && program->text == text ? program : nullptr;
}

bool IsElementName(std::string_view name) {
  return name == "index" || name == "row" || name == "col" || NumberedName(name, 'i') ||
         NumberedName(name, 'n');
}

}  // namespace shardinit
