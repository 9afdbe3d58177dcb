// Reads each kind of value. One long file, because values are made of other values, such as a list
// of names.
#include "spec/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "base/parse_number.h"
#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "spec/keys.h"
#include "spec/names.h"

namespace shardinit {
namespace {

bool IsNumberText(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  const size_t digit = text.starts_with('.') ? 1 : 0;
  if (text.size() <= digit || text[digit] < '0' || text[digit] > '9') return false;
  double unused;
  const char* end = text.data() + text.size();
  return text.starts_with("0x") || std::from_chars(text.data(), end, unused).ptr == end;
}

// Counts opening minus closing parentheses of an unquoted scalar.
int64_t OpenParentheses(const Node& node) {
  if (!node.IsScalar() || node.quoted) return 0;
  const std::string_view text = node.text;
  return std::ranges::count(text, '(') - std::ranges::count(text, ')');
}

// Counts the entries from `begin` that are pieces of one call, because YAML splits `[max(a, b), c]`
// at each comma. Returns 1 if no call is split.
size_t PiecesOfCall(const std::vector<Node::Entry>& entries, size_t begin) {
  int64_t open = OpenParentheses(*entries[begin].value);
  if (open <= 0) return 1;
  for (size_t i = begin + 1; i < entries.size(); ++i) {
    const Node::Entry& entry = entries[i];
    if (entry.key != nullptr) open += OpenParentheses(*entry.key);
    open += OpenParentheses(*entry.value);
    if (open <= 0) return i - begin + 1;
  }
  return 1;
}

// Returns `[tensor, null]` for JAX's `P('tensor', None)`; empty for other text.
std::string ListOfAxes(std::string_view text) {
  if (!(text.starts_with("P(") || text.starts_with("PartitionSpec(")) || !text.ends_with(')'))
    return {};
  const size_t open = text.find('(');
  std::string list(text.substr(open + 1, text.size() - open - 2));
  std::erase_if(list, [](char c) { return c == '\'' || c == '"'; });
  std::ranges::replace(list, '(', '[');
  std::ranges::replace(list, ')', ']');
  for (size_t at = 0; (at = list.find("None", at)) != list.npos;) list.replace(at, 4, "null");
  return fmt::format("[{}]", list);
}

// Returns `normal` for PyTorch's `nn.init.normal_`; empty for other text.
std::string NameOutsideTorch(std::string_view text) {
  constexpr std::string_view kModule = "nn.init.";
  const size_t at = text.find(kModule);
  if (at == text.npos || (at > 0 && text.substr(0, at) != "torch.")) return {};
  text.remove_prefix(at + kModule.size());
  if (text.ends_with('_')) text.remove_suffix(1);
  return std::string(text);
}

}  // namespace

bool IsBoolean(const Node& node) {
  return node.IsScalar() && !node.quoted && (node.text == "true" || node.text == "false");
}

bool IsNumber(const Node& node) {
  return node.IsScalar() && !node.quoted && IsNumberText(node.text);
}

ExprPtr SpecReader::ReadExpr(const Node::Entry& entry, std::string_view what) {
  const Node& node = *entry.value;
  const std::string subject = what.empty() ? Quote(entry.key->text) : std::string(what);
  if (!node.IsScalar() || IsBoolean(node)) {
    Error(node,
          fmt::format("{} must be a number or an expression, not {}", subject, Describe(node)),
          node.IsSequence() || node.IsMap() ? "" : "write it as in `4096` or `2 * d`");
    return nullptr;
  }
  if (node.quoted && IsNumberText(node.text)) {
    Error(node,
          fmt::format("{} must be a number, but {} in quotes is text", subject, Quote(node.text)),
          "remove the quotes; they are for expressions with commas");
    return nullptr;
  }
  if (!node.verbatim) {
    Error(node, fmt::format("{} must be an expression in one line, without escapes", subject));
    return nullptr;
  }
  Span span = node.span;
  span.column += node.text.data() == nullptr || !IsInQuotes(node) ? 0 : 1;
  return ParseExpr(node.text, span, diagnostics_);
}

ExprPtr SpecReader::ReadCondition(const Node::Entry& entry) {
  const Node& node = *entry.value;
  return IsBoolean(node) ? ParseExpr(node.text, node.span, diagnostics_) : ReadExpr(entry);
}

std::vector<Named<ExprPtr>> SpecReader::ReadExprs(const Node::Entry& entry, std::string_view what) {
  std::vector<Named<ExprPtr>> exprs;
  if (!IsMap(entry, "map names to numbers")) return exprs;
  const std::vector<Node::Entry>& items = entry.value->entries;
  for (size_t i = 0; i < items.size(); ++i) {
    const Node& name = *items[i].key;
    if (i > 0 && ReportCutNumber(*items[i - 1].value, items[i])) {
      exprs.back().value = nullptr;
      continue;
    }
    Named<ExprPtr>& expr = exprs.emplace_back();
    expr.name = ReadIdentifier(name, what);
    if (!ReportCutCall(items, &i)) expr.value = ReadExpr(items[i]);
  }
  if (entry.value->incomplete) exprs.emplace_back();
  return exprs;
}

std::vector<ExprPtr> SpecReader::ReadExprList(const Node::Entry& entry, std::string_view what) {
  std::vector<ExprPtr> exprs;
  const std::vector<Node::Entry>& items = entry.value->entries;
  for (size_t i = 0; i < items.size(); ++i) {
    const Node::Entry item = {entry.key, items[i].value};
    exprs.push_back(ReportCutCall(items, &i) ? nullptr : ReadExpr(item, what));
  }
  return exprs;
}

const Node::Entry* SpecReader::OnlyVariable(const Node::Entry& entry) {
  const std::string form = fmt::format("write it as in `{}: {{layer: 32}}`", entry.key->text);
  if (!IsMap(entry, form) || entry.value->incomplete) return nullptr;
  if (entry.value->entries.size() != 1) {
    return Error(*entry.value,
                 fmt::format("{} has one variable, not {}", Quote(entry.key->text),
                             entry.value->entries.size()),
                 form);
  }
  const Node::Entry& only = entry.value->entries[0];
  const bool is_good =
      CheckIdentifier(*only.key, fmt::format("{} variable", entry.key->text), diagnostics_) &&
      CheckVariable(*only.key, diagnostics_);
  return is_good ? &only : nullptr;
}

std::optional<Named<ExprPtr>> SpecReader::ReadCount(const Node::Entry& entry) {
  const Node::Entry* only = OnlyVariable(entry);
  if (only == nullptr) return std::nullopt;
  return Named<ExprPtr>{Text(*only->key), ReadExpr(*only)};
}

std::optional<Named<VarSpec>> SpecReader::ReadRepeat(const Node::Entry& entry) {
  const Node::Entry* only = OnlyVariable(entry);
  if (only == nullptr) return std::nullopt;
  return Named<VarSpec>{Text(*only->key),
                        only->value->IsSequence()
                            ? ReadVariable(*only)
                            : VarSpec{false, {ReadExpr(*only)}, only->value->span}};
}

std::string TextOf(const VarSpec& var) {
  std::string text;
  for (const ExprPtr& item : var.items) {
    text += (text.empty() ? "" : ", ") + (item == nullptr ? "" : TextOf(*item));
  }
  return var.is_list ? fmt::format("[{}]", text) : text;
}

VarSpec SpecReader::ReadVariable(const Node::Entry& entry) {
  const Node& node = *entry.value;
  const bool has_text =
      node.IsMap() && node.entries.size() == 1 && node.entries[0].key->text == "text";
  const Node::Entry value = has_text ? node.entries[0] : entry;
  VarSpec variable = {value.value->IsSequence(), {}, node.span};
  const auto read = [&](const Node::Entry& item, std::string_view what) {
    return has_text                 ? ReadVariableText(item)
           : IsBoolean(*item.value) ? ReadCondition(item)
                                    : ReadExpr(item, what);
  };
  if (!variable.is_list) {
    variable.items.push_back(read({entry.key, value.value}, {}));
    return variable;
  }
  const std::vector<Node::Entry>& items = value.value->entries;
  const std::string what = fmt::format("an item of {}", Quote(entry.key->text));
  for (size_t i = 0; i < items.size(); ++i) {
    const Node::Entry item = {entry.key, items[i].value};
    variable.items.push_back(ReportCutCall(items, &i) ? nullptr : read(item, what));
  }
  if (items.empty()) {
    Error(node, fmt::format("the list {} is empty", Quote(entry.key->text)));
    variable.items.push_back(nullptr);
  }
  return variable;
}

// Converts text to the expression that quotes around it would give.
ExprPtr SpecReader::ReadVariableText(const Node::Entry& entry) {
  const Node& node = *entry.value;
  if (!IsText(entry)) return nullptr;
  if (node.text.find('\'') != node.text.npos) {
    Error(node, fmt::format("the text {} has a quote", Quote(node.text)), "choose one without `'`");
    return nullptr;
  }
  return ParseExpr(fmt::format("'{}'", node.text), node.span, diagnostics_);
}

std::vector<Named<VarSpec>> SpecReader::ReadVariables(const Node::Entry& entry,
                                                      std::string_view what) {
  std::vector<Named<VarSpec>> variables;
  if (!IsMap(entry, "map names to numbers")) return variables;
  const std::vector<Node::Entry>& items = entry.value->entries;
  for (size_t i = 0; i < items.size(); ++i) {
    const Node& name = *items[i].key;
    if (i > 0 && ReportCutNumber(*items[i - 1].value, items[i])) {
      variables.back().value.items[0] = nullptr;
      continue;
    }
    Named<VarSpec>& variable = variables.emplace_back();
    variable.name = ReadIdentifier(name, what);
    if (!CheckVariable(name, diagnostics_)) variable.name.value.clear();
    if (ReportCutCall(items, &i)) {
      variable.value.items.push_back(nullptr);
    } else {
      variable.value = ReadVariable(items[i]);
    }
  }
  if (entry.value->incomplete) variables.emplace_back().value.items.push_back(nullptr);
  return variables;
}

std::optional<Located<std::string>> SpecReader::ReadText(const Node::Entry& entry) {
  if (!IsText(entry)) return std::nullopt;
  return Text(*entry.value);
}

std::optional<Located<std::string>> SpecReader::ReadChoice(
    const Node::Entry& entry, std::span<const std::string_view> choices) {
  const Node& node = *entry.value;
  if (node.IsScalar() && Contains(choices, node.text)) return Text(node);
  const std::vector<std::string> names(choices.begin(), choices.end());
  const std::span<const std::string> first(names.begin(), names.end() - 1);
  return Error(
      node,
      fmt::format("{} must be `{}` or `{}`, not {}", Quote(entry.key->text),
                  fmt::join(first, "`, `"), names.back(), Describe(node)),
      node.IsScalar() && !Closest(node.text, names).empty() ? DidYouMean(node.text, names) : "");
}

std::optional<UnevenSpec> SpecReader::ReadUneven(const Node::Entry& entry) {
  const Node& node = *entry.value;
  if (node.IsMap() && node.entries.size() == 1 && node.entries[0].key->text == "pad") {
    const Node::Entry& pad = node.entries[0];
    UnevenSpec spec{Text(*pad.key), ReadExpr(pad)};
    return spec.padding == nullptr ? std::nullopt : std::optional(spec);
  }
  auto word = ReadChoice(entry, kUnevenPolicies);
  return word ? std::optional(UnevenSpec{*word}) : std::nullopt;
}

Located<std::string> SpecReader::ReadIdentifier(const Node& node, std::string_view what) {
  if (CheckIdentifier(node, what, diagnostics_)) return Text(node);
  return {"", node.span};
}

Located<std::string> SpecReader::ReadAxisName(const Node& node, std::string_view what) {
  if (!node.IsScalar()) {
    Error(node, fmt::format("a {} is a name, not {}", what, Describe(node)));
  } else if (node.text == "-" || node.text == "None") {
    Error(node, fmt::format("{} is not the name of a {}", Quote(node.text), what),
          "write `null` for a dimension without one");
  } else {
    return ReadIdentifier(node, what);
  }
  return {"", node.span};
}

AxisList SpecReader::ReadMeshAxisList(const Node& node) {
  AxisList axes = {{}, node.span};
  if (node.IsSequence()) {
    for (const Node::Entry& item : node.entries)
      axes.value.push_back(ReadAxisName(*item.value, "mesh axis"));
  } else if (!node.IsNull()) {
    axes.value.push_back(ReadAxisName(node, "mesh axis"));
  }
  std::erase_if(axes.value, [](const auto& axis) { return axis.value.empty(); });
  return axes;
}

std::optional<DimensionList> SpecReader::ReadDimensions(const Node::Entry& entry) {
  DimensionList list = {{}, entry.value->span};
  if (!entry.value->IsSequence()) {
    if (const auto dimension = ReadDimension(entry, *entry.value)) {
      list.value.push_back(*dimension);
      return list;
    }
    return std::nullopt;
  }
  for (const Node::Entry& item : entry.value->entries) {
    const auto dimension = ReadDimension(entry, *item.value);
    if (!dimension) return std::nullopt;
    list.value.push_back(*dimension);
  }
  return list;
}

std::optional<DimensionRef> SpecReader::ReadDimension(const Node::Entry& entry, const Node& node) {
  // Excludes `01`, which some readers treat as octal, and numbers that do not fit in 64 bits.
  const int64_t position = ParseNumber<int64_t>(node.text).value_or(0);
  if (!node.IsScalar() || IsBoolean(node) ||
      (IsNumber(node) && fmt::format("{}", position) != node.text)) {
    return Error(
        node,
        fmt::format("{} must name a dimension, not {}", Quote(entry.key->text), Describe(node)),
        "write a name of the tensor's `axes` or a position, such as `-2` for the last but one");
  }
  if (IsNumber(node)) return DimensionRef{position, node.span};
  if (!CheckIdentifier(node, "logical axis", diagnostics_)) return std::nullopt;
  return DimensionRef{std::string(node.text), node.span};
}

std::optional<InitSpec> SpecReader::ReadInit(const Node& node) {
  constexpr std::string_view kForm = "write a name, such as `zeros`, or `{normal: {std: 0.02}}`";
  if (node.IsScalar() && !IsNumber(node) && !IsBoolean(node)) {
    if (node.text.find('(') != std::string_view::npos) {
      return Error(node,
                   fmt::format("an initializer is a name or a mapping, not {}", Quote(node.text)),
                   "arguments are a mapping, such as `{normal: {std: 0.02}}`");
    }
    if (const std::string plain = NameOutsideTorch(node.text); !plain.empty()) {
      return Error(node, fmt::format("unknown initializer {}", Quote(node.text)),
                   fmt::format("did you mean {}?", Quote(plain)));
    }
    if (!CheckIdentifier(node, "initializer", diagnostics_)) return std::nullopt;
    return InitSpec{Text(node), nullptr, {}};
  }
  if (NoteGaps(node)) return std::nullopt;
  if (!node.IsMap()) {
    return Error(node, fmt::format("an initializer is a name or a mapping, not {}", Describe(node)),
                 std::string(kForm));
  }
  if (size_t first = 0; !node.entries.empty() && ReportCutCall(node.entries, &first)) {
    return std::nullopt;
  }
  if (const Node* source = node.Find("source")) {
    auto from = ReadFromSource(node, false);
    if (from == nullptr) return std::nullopt;
    const Span place = source->span;
    return InitSpec{{"source", place}, nullptr, {}, {}, {}, std::move(from)};
  }
  if (node.entries.size() != 1) {
    return Error(node, fmt::format("an initializer has one name, not {}", node.entries.size()),
                 std::string(kForm));
  }
  const Node::Entry& only = node.entries[0];
  if (!CheckIdentifier(*only.key, "initializer", diagnostics_)) return std::nullopt;
  return ReadInitOf(only);
}

// Reads an initializer's arguments. Some initializers have their own syntax for them.
std::optional<InitSpec> SpecReader::ReadInitOf(const Node::Entry& only) {
  if (only.key->text == "expr") {
    const ExprPtr expr = ReadExpr(only, "`expr`");
    if (expr == nullptr) return std::nullopt;
    return InitSpec{Text(*only.key), expr, {}};
  }
  if (only.key->text == "file") {
    std::optional<FileSpec> file = ReadFileSpec(only);
    if (!file) return std::nullopt;
    return InitSpec{Text(*only.key), nullptr, {}, std::move(file)};
  }
  if (only.key->text == "rows_like") {
    auto from = ReadFromSource(*only.value, true);
    if (from == nullptr) return std::nullopt;
    return InitSpec{Text(*only.key), nullptr, {}, {}, {}, std::move(from)};
  }
  if (only.key->text == "parts") {
    auto parts = ReadParts(*only.value);
    if (parts == nullptr) return std::nullopt;
    return InitSpec{Text(*only.key), nullptr, {}, {}, {}, nullptr, std::move(parts)};
  }
  if (only.key->text == "norms") {
    const bool is_of = only.value->IsMap() && only.value->entries.size() == 1 &&
                       only.value->entries[0].key->text == "of";
    if (!is_of) {
      if (!only.value->incomplete) {
        Error(*only.value, fmt::format("`norms` takes `of`, not {}", Describe(*only.value)),
              "its only key is `of`: write `{norms: {of: path.of.a.tensor}}`");
      }
      return std::nullopt;
    }
    std::optional<Located<std::string>> of = ReadText(only.value->entries[0]);
    if (!of) return std::nullopt;
    return InitSpec{Text(*only.key), nullptr, {}, {}, std::move(of)};
  }
  if (!IsMap(only, "arguments have names, as in `{normal: {std: 0.02}}`")) return std::nullopt;
  return InitSpec{Text(*only.key), nullptr, ReadExprs(only, "argument")};
}

std::variant<ExprPtr, uint64_t> SpecReader::ReadSeed(const Node::Entry& entry) {
  const Node& node = *entry.value;
  constexpr std::string_view kWords[] = {"random", "none", "None", "auto", "time"};
  if (node.IsScalar() && Contains(kWords, node.text)) {
    Error(node, fmt::format("`seed` must be a number, not {}", Quote(node.text)),
          "write one, such as `seed: 0`: the same seed gives the same values in every run");
    return ExprPtr();
  }
  const bool is_digits =
      IsNumber(node) && node.text.find_first_not_of("0123456789") == std::string_view::npos;
  if (!is_digits || node.text.starts_with('0')) return ReadExpr(entry);
  const std::optional<uint64_t> seed = ParseNumber<uint64_t>(node.text);
  if (!seed) {
    Error(node, fmt::format("`seed` {} does not fit in 64 bits", Quote(node.text)),
          fmt::format("the largest is {}", std::numeric_limits<uint64_t>::max()));
    return ExprPtr();
  }
  if (*seed <= std::numeric_limits<int64_t>::max()) return ReadExpr(entry);
  return *seed;
}

bool SpecReader::ReportCutNumber(const Node& before, const Node::Entry& entry) {
  const std::string_view digits = entry.key->text;
  if (!entry.value->IsNull() || !IsNumber(before) || digits.empty() ||
      digits.find_first_not_of("0123456789") != digits.npos)
    return false;
  Error(*entry.key, "the comma ends the number",
        fmt::format("write `{}{}{}`", before.text, before.text == "0" ? "." : "", digits));
  return true;
}

bool SpecReader::ReportCutCall(const std::vector<Node::Entry>& items, size_t* at) {
  const size_t pieces = PiecesOfCall(items, *at);
  if (pieces == 1) return false;
  std::string whole(items[*at].value->text);
  for (size_t i = *at + 1; i < *at + pieces; ++i) {
    const Node* key = items[i].key;
    whole += fmt::format(", {}", key != nullptr ? key->text : items[i].value->text);
  }
  const std::string list = ListOfAxes(whole);
  Error(*items[*at].value, "a comma ends the value here, inside the parentheses",
        list.empty() ? fmt::format("put the whole expression in quotes: `\"{}\"`", whole)
                     : fmt::format("a list needs brackets: `{}`", list));
  *at += pieces - 1;
  return true;
}

bool SpecReader::IsMap(const Node::Entry& entry, std::string_view hint) {
  NoteGaps(*entry.value);
  if (entry.value->IsMap()) return true;
  return ReportKind(entry, "a mapping", hint);
}

bool SpecReader::IsSequence(const Node::Entry& entry, std::string_view hint) {
  if (entry.value->IsSequence()) return true;
  if (const std::string list = ListOfAxes(entry.value->text); !list.empty()) {
    return ReportKind(entry, "a list", fmt::format("a list needs brackets: `{}`", list));
  }
  return ReportKind(entry, "a list", hint);
}

bool SpecReader::IsText(const Node::Entry& entry) {
  const Node& node = *entry.value;
  if (node.IsScalar() && !IsBoolean(node) && !IsNumber(node)) return true;
  return ReportKind(entry, "text", node.IsScalar() ? "put it in quotes" : "");
}

Reported SpecReader::ReportKind(const Node::Entry& entry, std::string_view wanted,
                                std::string_view hint) {
  return Error(
      *entry.value,
      fmt::format("{} must be {}, not {}", Quote(entry.key->text), wanted, Describe(*entry.value)),
      std::string(hint));
}

Reported SpecReader::Error(const Node& node, std::string message, std::string hint) {
  if (!node.ambiguous) return ErrorAt(node.span, std::move(message), std::move(hint));
  ++known_faults_;
  return {};
}

}  // namespace shardinit
