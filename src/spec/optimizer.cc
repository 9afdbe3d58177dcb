#include "spec/optimizer.h"

#include <fmt/format.h>

#include <optional>
#include <span>

#include "base/parse_number.h"
#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "spec/override.h"
#include "spec/reader.h"
#include "spec/yaml.h"

namespace shardinit {
namespace {

constexpr char kAdamW[] = "adamw";

enum class HyperKind { kNumber, kPair, kBoolean, kBooleanOrNull };
struct HyperRow {
  std::string_view name;
  HyperKind kind;
  std::optional<Hyperparameter> default_value;  // nullopt: present only if given
};

// From torch/optim/adamw.py and adam.py, in the order of their `param_groups`. Schedulers add
// `initial_lr`.
const HyperRow kHyperparameters[] = {
    {"lr", HyperKind::kNumber, std::nullopt},
    {"betas", HyperKind::kPair, std::pair(0.9, 0.999)},
    {"eps", HyperKind::kNumber, 1e-8},
    {"weight_decay", HyperKind::kNumber, 1e-2},
    {"amsgrad", HyperKind::kBoolean, false},
    {"maximize", HyperKind::kBoolean, false},
    {"foreach", HyperKind::kBooleanOrNull, nullptr},
    {"capturable", HyperKind::kBoolean, false},
    {"differentiable", HyperKind::kBoolean, false},
    {"fused", HyperKind::kBooleanOrNull, nullptr},
    {"decoupled_weight_decay", HyperKind::kBoolean, true},
    {"initial_lr", HyperKind::kNumber, std::nullopt},
};

class OptimizerReader {
 public:
  explicit OptimizerReader(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  OptimizerSpec Read(const Node& node) {
    OptimizerSpec optimizer;
    const Node* groups = nullptr;
    if (node.IsScalar()) {
      if (!IsName(node)) return optimizer;
    } else if (node.IsMap() && node.entries.size() == 1) {
      if (!IsName(*node.entries[0].key)) return optimizer;
      groups = node.entries[0].value;
    } else {
      const bool is_reported = node.incomplete || (node.IsNull() && diagnostics_.HasErrors());
      const bool has_names = node.IsMap() && !node.entries.empty();
      if (!is_reported) {
        Error(node,
              has_names ? fmt::format("an optimizer has one name, not {}", node.entries.size())
                        : "an optimizer has a name",
              "write it as in `adamw` or `{adamw: {lr: 3e-4}}`");
      }
      return optimizer;
    }
    if (groups != nullptr && groups->IsSequence()) {
      for (const Node::Entry& group : groups->entries) {
        optimizer.groups.push_back(ReadGroup(*group.value, &optimizer.has_schedule));
      }
      CheckAlike(*groups, optimizer.groups);
    } else if (groups != nullptr && !groups->IsNull()) {
      optimizer.groups.push_back(ReadGroup(*groups, &optimizer.has_schedule));
    } else {
      optimizer.groups.push_back({.params = {{"*", node.span}}});
    }
    return optimizer;
  }

 private:
  // The error for a duplicate key has already been reported.
  Reported Error(const Node& node, std::string message, std::string hint = {}) {
    if (node.ambiguous) return {};
    return diagnostics_.Error(node.span, std::move(message), std::move(hint));
  }

  bool IsName(const Node& node) {
    if (node.text == kAdamW) return true;
    return Error(
        node, fmt::format("unknown optimizer {}", Quote(node.text)),
        fmt::format("use `{}`, the only one; the name of a file has a dot or a slash", kAdamW));
  }

  ParamGroup ReadGroup(const Node& node, bool* has_schedule) {
    ParamGroup group;
    if (!node.IsMap()) {
      Error(node, fmt::format("a parameter group must be a mapping, not {}", Describe(node)),
            "write it as in `{lr: 3e-4, weight_decay: 0.1}`");
      return group;
    }
    const Node* const params = node.Find("params");
    params != nullptr ? ReadParams(*params, &group) : group.params.push_back({"*", node.span});
    const Node* const schedule = node.Find("schedule");
    if (schedule != nullptr && !IsBoolean(*schedule)) {
      Error(*schedule,
            fmt::format("`schedule` must be `true` or `false`, not {}", Describe(*schedule)));
    }
    *has_schedule |= schedule != nullptr && schedule->text == "true";
    std::vector<std::string> names = NamesOf(kHyperparameters);
    names.insert(names.begin(), {"params", "schedule"});
    bool is_given = false;
    for (const Node::Entry& entry : node.entries) {
      is_given |= entry.value != params && entry.value != schedule;
      if (Contains(names, entry.key->text)) continue;
      Error(*entry.key, fmt::format("a parameter group of AdamW has no {}", Quote(entry.key->text)),
            DidYouMean(entry.key->text, names));
    }
    if (is_given && !node.incomplete) ReadHyperparameters(node, &group);
    return group;
  }

  void ReadParams(const Node& node, ParamGroup* group) {
    const auto read = [&](const Node& pattern) {
      if (pattern.IsScalar() && !pattern.text.empty()) {
        group->params.push_back({std::string(pattern.text), pattern.span});
      } else {
        Error(pattern, fmt::format("`params` must be paths of tensors, not {}", Describe(pattern)),
              "write it as in `params: ['*.norm.weight', '*.bias']`");
      }
    };
    if (!node.IsSequence()) return read(node);
    for (const Node::Entry& entry : node.entries) read(*entry.value);
    if (node.entries.empty()) Error(node, "`params` is empty", "leave the group out");
  }

  void ReadHyperparameters(const Node& node, ParamGroup* group) {
    for (const HyperRow& row : kHyperparameters) {
      const Node* const value = node.Find(row.name);
      if (value == nullptr) {
        if (row.default_value) group->hyperparameters.emplace_back(row.name, *row.default_value);
        if (row.name == "lr") {
          Error(node, "a parameter group with hyperparameters needs `lr`",
                "give all the run's hyperparameters, because these replace them; without any, the "
                "run keeps its own");
        }
        continue;
      }
      const auto parameter = ReadHyperparameter(row, *value);
      if (!parameter) continue;
      group->hyperparameters.emplace_back(row.name, *parameter);
      if (row.name == "amsgrad") group->amsgrad = std::get<bool>(*parameter);
      if (row.name == "decoupled_weight_decay" && !std::get<bool>(*parameter)) {
        Error(*value, "without `decoupled_weight_decay` this is Adam, not AdamW",
              "leave it out, or set `weight_decay: 0`, which makes the two equal");
      }
    }
  }

  std::optional<Hyperparameter> ReadHyperparameter(const HyperRow& row, const Node& node) {
    switch (row.kind) {
      case HyperKind::kNumber:
        if (const auto number = ReadNumber(node, HUGE_VAL)) return *number;
        return Wrong(row, node, "a finite number of at least 0");
      case HyperKind::kPair: {
        constexpr std::string_view kWanted =
            "two numbers from 0 to less than 1, such as `[0.9, 0.95]`";
        if (!node.IsSequence()) return Wrong(row, node, kWanted);
        std::vector<double> numbers;
        for (const Node::Entry& entry : node.entries) {
          const auto number = ReadNumber(*entry.value, 1);
          if (!number) return Wrong(row, *entry.value, kWanted);
          numbers.push_back(*number);
        }
        if (numbers.size() == 2) return std::pair(numbers[0], numbers[1]);
        return Wrong(row, node, kWanted, fmt::to_string(numbers.size()));
      }
      case HyperKind::kBooleanOrNull:
        if (node.IsNull()) return nullptr;
        [[fallthrough]];
      case HyperKind::kBoolean:
        if (IsBoolean(node)) return node.text == "true";
        return Wrong(row, node, "`true` or `false`");
    }
    return {};
  }

  std::optional<Hyperparameter> Wrong(const HyperRow& row, const Node& node,
                                      std::string_view wanted, std::string found = {}) {
    if (found.empty()) found = Describe(node);
    Error(node, fmt::format("`{}` must be {}, not {}", row.name, wanted, found));
    return {};
  }

  // Reads a number that is at least 0 and less than `end`.
  static std::optional<double> ReadNumber(const Node& node, double end) {
    const auto number = IsNumber(node) ? ParseNumber<double>(node.text) : std::nullopt;
    return number && *number >= 0 && *number < end ? number : std::nullopt;
  }

  void CheckAlike(const Node& list, std::span<const ParamGroup> groups) {
    if (list.entries.empty()) Error(list, "an optimizer has a parameter group");
    for (size_t i = 0; i < groups.size(); ++i) {
      if (groups[i].hyperparameters.empty() == groups[0].hyperparameters.empty()) continue;
      const size_t without = groups[i].hyperparameters.empty() ? i : 0;
      Error(*list.entries[without].value,
            fmt::format("parameter group {} has no hyperparameters, but group {} has some", without,
                        without == 0 ? i : 0),
            "give the run's hyperparameters to all groups, or to none");
      return;
    }
  }

  Diagnostics& diagnostics_;
};

}  // namespace

OptimizerSpec ReadOptimizer(const std::string& text, Diagnostics& diagnostics) {
  NodeStore store;
  const Node* const node = ReadOption("--optimizer", text, store, diagnostics);
  return node != nullptr ? OptimizerReader(diagnostics).Read(*node) : OptimizerSpec();
}

}  // namespace shardinit
