#include "graph/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "graph/drawn/tie.h"
#include "graph/engines/engines.h"
#include "init/sampled.h"

namespace shardinit {
namespace {

// Returns the group `a.b` of `a.b.c`; empty for `a`.
std::string_view GroupOf(std::string_view path) {
  const size_t dot = path.rfind('.');
  return path.substr(0, dot == path.npos ? 0 : dot);
}

// A tensor's path, or a group that contains a tensor.
struct Name {
  Name(std::string_view name, size_t number)
      : hash(std::hash<std::string_view>()(name)), text(name), tensor(number) {}
  size_t hash;
  std::string_view text;
  size_t tensor;
};

bool IsBefore(const Name& a, const Name& b) {
  return a.hash != b.hash ? a.hash < b.hash : a.text < b.text;
}

void SortNames(std::vector<Name>& names) {
  std::ranges::sort(names, [](const Name& a, const Name& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    return std::tie(a.text, a.tensor) < std::tie(b.text, b.tensor);
  });
}

bool IsInGroup(std::string_view group, std::string_view path) {
  return path.size() > group.size() && path[group.size()] == '.' && path.starts_with(group);
}

// Calls `visit` with each group of a tensor that does not contain the previous tensor.
template <typename F>
void ForEachNewGroup(const std::vector<Tensor>& all, size_t i, F visit) {
  std::string_view group = GroupOf(all[i].path());
  for (; !group.empty() && (i == 0 || !IsInGroup(group, all[i - 1].path()));
       group = GroupOf(group)) {
    visit(group);
  }
}

// Returns the sorted hashes of all names that may belong to two tensors, or to a tensor and a
// group. Hashes of different names hardly ever collide, and take 8 bytes for each tensor. A table
// of bits quickly rules out most groups, because few share a bit with a tensor.
std::vector<uint64_t> FindSuspects(const std::vector<Tensor>& all) {
  const std::hash<std::string_view> hash;
  std::vector<uint64_t> paths;
  paths.reserve(all.size());
  for (const Tensor& tensor : all) paths.push_back(hash(tensor.path()));
  std::ranges::sort(paths);
  std::vector<bool> is_taken(16 * all.size());
  for (const uint64_t path : paths) is_taken[path % is_taken.size()] = true;
  std::vector<uint64_t> suspects;
  for (size_t k = 1; k < paths.size(); ++k) {
    if (paths[k] == paths[k - 1]) suspects.push_back(paths[k]);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    ForEachNewGroup(all, i, [&](std::string_view group) {
      const uint64_t name = hash(group);
      if (is_taken[name % is_taken.size()] && std::ranges::binary_search(paths, name)) {
        suspects.push_back(name);
      }
    });
  }
  std::ranges::sort(suspects);
  return suspects;
}

// Checks paths: `a.b.c` makes the groups `a.b` and `a`, and no tensor may have such a path.
void CheckPaths(const std::vector<Tensor>& all, const std::vector<const Span*>& places,
                Diagnostics& diagnostics) {
  const std::vector<uint64_t> suspects = FindSuspects(all);
  if (suspects.empty()) return;
  std::vector<Name> paths, groups;
  const auto add = [&](std::string_view text, size_t i, std::vector<Name>& names) {
    const Name name(text, i);
    if (std::ranges::binary_search(suspects, name.hash)) names.push_back(name);
  };
  for (size_t i = 0; i < all.size(); ++i) {
    add(all[i].path(), i, paths);
    ForEachNewGroup(all, i, [&](std::string_view group) { add(group, i, groups); });
  }
  SortNames(paths);
  SortNames(groups);

  // The first of each pair is the later or the outer tensor.
  std::vector<std::pair<size_t, size_t>> equal, inside;
  for (size_t k = 1, first = 0; k < paths.size(); ++k) {
    if (IsBefore(paths[first], paths[k])) {
      first = k;
    } else {
      equal.emplace_back(paths[k].tensor, paths[first].tensor);
    }
  }
  for (size_t k = 0, p = 0; k < groups.size(); ++k) {
    if (k > 0 && !IsBefore(groups[k - 1], groups[k])) continue;
    while (p < paths.size() && IsBefore(paths[p], groups[k])) ++p;
    if (p == paths.size()) break;
    if (!IsBefore(groups[k], paths[p])) inside.emplace_back(paths[p].tensor, groups[k].tensor);
  }
  std::ranges::sort(equal);
  std::ranges::sort(inside);
  for (const auto& [tensor, first] : equal) {
    diagnostics.Error(*places[tensor],
                      fmt::format("two tensors have the path `{}`", all[first].path()));
    diagnostics.Note(*places[first], "the first one is here");
  }
  for (const auto& [outer, inner] : inside) {
    diagnostics.Error(*places[outer],
                      fmt::format("`{}` is a tensor and also the group of `{}`", all[outer].path(),
                                  all[inner].path()),
                      "rename one of them: a checkpoint cannot hold both");
    diagnostics.Note(*places[inner], "the other one is here");
  }
}

// Sorts numbers and returns those that occur more than once, each once.
std::vector<uint64_t> TakeRepeated(std::vector<uint64_t> numbers) {
  std::ranges::sort(numbers);
  size_t kept = 0;
  for (size_t k = 1; k < numbers.size(); ++k) {
    if (numbers[k] != numbers[k - 1] || (kept > 0 && numbers[k] == numbers[kept - 1])) continue;
    numbers[kept++] = numbers[k];
  }
  numbers.resize(kept);
  return numbers;
}

bool IsTied(const TensorSpec* spec) { return spec != nullptr && spec->tie; }

// Checks that no two tensors share a stream. The error to find is a repeated explicit `key:`. The
// 64-bit keys of two paths could collide too, but hardly ever will.
void CheckKeys(const std::vector<Tensor>& all, const std::vector<const Span*>& places,
               const std::vector<const TensorSpec*>& specs, Diagnostics& diagnostics) {
  const auto is_checked = [](const Tensor& tensor) {
    const Stream stream = tensor.stream();
    return IsRandom(tensor.distribution()) && !stream.is_least &&
           (!stream.engine->has_places || HasPlace(tensor));
  };
  std::vector<uint64_t> keys;
  keys.reserve(all.size());
  for (const Tensor& tensor : all) {
    if (is_checked(tensor)) keys.push_back(tensor.stream().key);
  }
  keys = TakeRepeated(std::move(keys));
  if (keys.empty()) return;
  std::vector<std::pair<uint64_t, size_t>> order;  // key, tensor
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t key = all[i].stream().key;
    if (is_checked(all[i]) && std::ranges::binary_search(keys, key)) order.emplace_back(key, i);
  }
  std::ranges::sort(order);
  // Few tensors share a key, unless the engine has one key for all.
  const auto before = [&](const auto& a, const auto& b) {
    return std::pair(all[a.second].stream(), a.second) <
           std::pair(all[b.second].stream(), b.second);
  };
  for (auto begin = order.begin(); begin != order.end();) {
    const auto end = std::find_if(begin, order.end(),
                                  [&](const auto& each) { return each.first != begin->first; });
    if (end - begin > 1) std::sort(begin, end, before);
    begin = end;
  }
  // The untied tensor of the current stream, if there is one.
  size_t untied = order.empty() ? 0 : order[0].second;
  size_t first = untied;  // the last tensor of the stream without an error here
  // A tie to a tensor that is not alike was already reported.
  const bool ties_are_reported = diagnostics.HasErrors();
  for (size_t k = 1; k < order.size(); ++k) {
    const size_t second = order[k].second;
    if (all[first].stream() != all[second].stream()) {
      first = untied = second;
      continue;
    }
    // Tensors may share a stream if all but one of them are tied to that one. That one may be tied
    // to itself if it is the first of a repeat.
    const bool is_alike = MadeAlike(all[first], all[second]);
    const bool ties = specs.empty() ? is_alike
                                    : (is_alike || ties_are_reported) &&
                                          (IsTied(specs[second]) || IsTied(specs[untied]));
    if (!specs.empty() && !IsTied(specs[second])) untied = second;
    if (ties) {
      first = second;
      continue;
    }
    diagnostics.Error(*places[second],
                      fmt::format("`{}` and `{}` would be drawn from the same random stream",
                                  all[first].path(), all[second].path()),
                      "give one of them another `key`");
    diagnostics.Note(*places[first], "the other one is here");
  }
}

// Returns the value of all elements, if it is one number that is already known.
std::optional<double> TheOnlyValue(const Distribution& distribution) {
  if (const auto* constant = std::get_if<Constant>(&distribution)) return constant->value;
  const auto* expression = std::get_if<Expression>(&distribution);
  if (expression == nullptr) return {};
  for (const Program::Literal& literal : expression->program->literals) {
    if (literal.slot == expression->program->result) return literal.value;
  }
  return {};
}

void ReportRefusal(const Tensor& tensor, const Span& place, std::string_view why,
                   std::string_view choose, Diagnostics& diagnostics) {
  const std::string_view engine = tensor.stream().engine->name;
  const auto* const expression = std::get_if<Expression>(&tensor.distribution());
  // No other engine has the functions that take this engine's numbers.
  const bool is_bound = expression != nullptr && !expression->program->placed.empty();
  diagnostics.Error(place,
                    fmt::format("engine `{}` cannot draw `{}`, {}: {}", engine, tensor.path(),
                                InText(tensor), why),
                    is_bound ? "give its functions other numbers"
                             : fmt::format("choose {}, or the engine `philox4x32`", choose));
}

}  // namespace

Misfit MisfitOf(const Distribution& distribution, DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  if (const auto* parts = std::get_if<Parts>(&distribution)) {
    for (const Part& part : parts->of->parts) {
      if (Misfit misfit = MisfitOf(part.distribution, dtype); !misfit.what.empty()) return misfit;
    }
    return {};
  }
  if (info.is_float()) {
    const double largest = LargestMagnitude(distribution);
    if (largest <= LargestOf(dtype)) return {};
    return {fmt::format("reach {}, but {} ends at {}", largest, info.name, LargestOf(dtype)),
            "choose a larger dtype or smaller parameters"};
  }
  if (const auto value = TheOnlyValue(distribution)) {
    if (Holds(dtype, *value)) return {};
    return {fmt::format("are {}, but {} holds {}", *value, info.name, DescribeRange(dtype)),
            "choose another dtype or another value"};
  }
  if (std::holds_alternative<Expression>(distribution) ||
      std::holds_alternative<FromFile>(distribution) ||
      std::holds_alternative<FromSource>(distribution)) {
    return {};
  }
  return {fmt::format("are fractions, but {} holds {}", info.name, DescribeRange(dtype)),
          fmt::format("choose a float dtype, or draw with `{{expr: \"{}\"}}`",
                      dtype == DType::boolean ? "uniform() < 0.5" : "floor(uniform() * 10)")};
}

std::string MisfitOfPadding(double value, DType dtype) {
  if (MisfitOf(Constant{value}, dtype).what.empty()) return {};
  const DTypeInfo& info = InfoOf(dtype);
  return fmt::format("the padding is {}, but {} {}", value, info.name,
                     info.is_float() ? fmt::format("ends at {}", LargestOf(dtype))
                                     : "holds " + DescribeRange(dtype));
}

namespace {

void CheckDraws(const std::vector<Tensor>& all, const std::vector<const Span*>& places,
                Diagnostics& diagnostics) {
  // Making a sampler takes as long as a thousand tensors, and most tensors share one.
  std::map<std::tuple<double, double, double>, std::string_view> known;
  for (size_t i = 0; i < all.size(); ++i) {
    const Engine& engine = *all[i].stream().engine;
    const auto* t = std::get_if<TruncatedNormal>(&all[i].distribution());
    if (engine.refusal == nullptr || t == nullptr) continue;
    const auto [place, is_new] = known.try_emplace({t->std, t->low, t->high});
    if (is_new) place->second = engine.refusal(SamplerOf(*t));
    if (place->second.empty()) continue;
    ReportRefusal(all[i], *places[i], place->second, "other parameters", diagnostics);
  }
}

// Checks that an expression takes only numbers of the spec's engine, and that this engine can
// generate them.
void CheckPlaced(const std::vector<Tensor>& all, const std::vector<const Span*>& places,
                 Diagnostics& diagnostics) {
  for (size_t i = 0; i < all.size(); ++i) {
    const Engine& engine = *all[i].stream().engine;
    if (const Engine* other = OtherEngine(all[i].distribution(), engine)) {
      diagnostics.Error(
          *places[i],
          fmt::format("`{}` takes numbers of {}, which engine `{}` cannot draw", all[i].path(),
                      other->framework, engine.name),
          fmt::format("write `engine: {}` at the top of the spec", other->spec_name()));
      continue;
    }
    if (const std::string why = RefusalOf(engine, all[i]); !why.empty()) {
      ReportRefusal(all[i], *places[i], why, "another initializer or dtype", diagnostics);
    }
  }
}

}  // namespace

void ValidateTensors(const std::vector<Tensor>& all, const std::vector<const Span*>& places,
                     const std::vector<const TensorSpec*>& specs, Diagnostics& diagnostics) {
  const size_t before = diagnostics.errors();
  CheckPaths(all, places, diagnostics);
  // Equal paths also have equal streams, and were already reported.
  if (diagnostics.errors() == before) CheckKeys(all, places, specs, diagnostics);
  CheckDraws(all, places, diagnostics);
  CheckPlaced(all, places, diagnostics);
}

}  // namespace shardinit
