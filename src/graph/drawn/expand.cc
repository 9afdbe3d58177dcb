#include "graph/drawn/expand.h"

#include <fmt/format.h>

#include <algorithm>

#include "spec/names.h"

namespace shardinit {
namespace {

int64_t CountTensors(const ModuleSpec& module) {
  int64_t count = 0;
  for (const auto& member : module.members) {
    const auto* inner = std::get_if<std::unique_ptr<ModuleSpec>>(&member.value);
    count += inner ? CountTensors(**inner) : 1;
  }
  return count;
}

// Returns `fans` of a module or the spec; null: none; an empty word: wrong.
template <typename T>
const Located<std::string>* FansOf(const T& spec) {
  static const Located<std::string> kWrong;
  if (spec.fans) return &*spec.fans;
  return spec.wrong.Has("fans") ? &kWrong : nullptr;
}

class Expander {
 public:
  Expander(int64_t before, Building& building, const std::function<void(const Leaf&)>& visit,
           const std::function<void(int64_t)>& expect)
      : building_(building),
        diagnostics_(building.diagnostics),
        names_(building.names),
        visit_(visit),
        expect_(expect),
        fans_(FansOf(building.spec)),
        made_(before) {}

  // `around` is the path of the enclosing module.
  void Expand(const ModuleSpec& module, const std::string& around, const std::string& name,
              int64_t copies) {
    if (!module.arguments) return ExpandVisible(module, around, name, copies);
    const SpecScope::Block block(names_, *module.arguments, diagnostics_);
    ExpandVisible(module, around, name, copies);
  }

  bool all_visited() const { return all_visited_; }

 private:
  void ExpandVisible(const ModuleSpec& module, const std::string& around, const std::string& name,
                     int64_t copies) {
    if (!IsThere(module)) {
      if (module.when) building_.why.LeaveOut(JoinPaths(around, name), module);
      return;
    }
    const Located<std::string>* const fans_around = fans_;
    if (const auto* fans = FansOf(module)) fans_ = fans;
    const StageSpec* const stage_around = stage_;
    const size_t blocks_around = blocks_of_stage_;
    if (module.stage) {
      stage_ = &*module.stage;
      blocks_of_stage_ = names_.blocks();
    }
    if (module.when) conditions_.push_back({module.when.get(), names_.blocks()});
    ExpandModule(module, around, name, copies);
    if (module.when) conditions_.pop_back();
    fans_ = fans_around;
    stage_ = stage_around;
    blocks_of_stage_ = blocks_around;
  }

  // Returns whether `when` keeps a tensor or module. Returns false if `when` itself is wrong,
  // because a tensor that would be left out may have errors.
  template <typename T>
  bool IsThere(const T& spec) {
    const bool is_wrong = spec.when == nullptr && spec.wrong.Has("when");
    if (spec.when == nullptr && !is_wrong) return true;
    const auto value = is_wrong ? std::nullopt : EvaluateNumber(*spec.when, names_, diagnostics_);
    all_visited_ &= value.has_value();
    return value && *value != 0;
  }

  void ExpandModule(const ModuleSpec& module, const std::string& around, const std::string& name,
                    int64_t copies) {
    if (module.repeat) {
      Repeat(module, around, name, copies);
      return;
    }
    all_visited_ &= !module.wrong.Has("repeat");
    const bool lacks = names_.lacks();
    names_.Lack(lacks || module.wrong.Has("repeat"));
    ExpandMembers(module, JoinPaths(around, name), copies);
    names_.Lack(lacks);
  }

  void Repeat(const ModuleSpec& module, const std::string& around, const std::string& name,
              int64_t copies) {
    const auto over = ListOf(module);
    const bool is_wrong = module.repeat->value.is_list && !over;
    const auto count = is_wrong ? std::nullopt : CountOf(module, over ? &*over : nullptr, copies);
    all_visited_ &= count.has_value();
    if (!count) return;
    SpecScope::Loop loop(names_, module.repeat->name.value);
    const size_t before = building_.Reported();
    const int64_t made_before = made_;
    for (int64_t i = 0; i < *count; ++i) {
      if (building_.Reported() != before) {
        all_visited_ = false;
        break;
      }
      loop.Set(over ? over->items[static_cast<size_t>(i)] : VarItem(i));
      const auto own = module.numbered ? EvaluatePath(*module.numbered, names_, diagnostics_)
                                       : std::optional(JoinPaths(name, fmt::format_int(i).str()));
      all_visited_ &= own.has_value();
      if (own) ExpandMembers(module, JoinPaths(around, *own), copies * *count);
      // The other iterations probably produce as many tensors.
      if (i == 0 && expect_) expect_((*count - 1) * (made_ - made_before));
    }
  }

  // Returns the list that a module is repeated over; nothing if it has a count or the list is
  // wrong.
  std::optional<VarValue> ListOf(const ModuleSpec& module) {
    const VarSpec& over = module.repeat->value;
    const ExprPtr& only = over.items[0];
    if (over.is_list) return names_.Evaluate(over, diagnostics_);
    if (only == nullptr || !IsName(*only)) return {};
    const VarValue* list = names_.FindVariable(TextOf(*only), diagnostics_);
    if (list == nullptr || !list->is_list) return {};
    return *list;
  }

  // Returns how often a module is repeated; `over` is its list or null. Returns nothing if its
  // variable or the number of tensors is wrong. If the count itself is wrong, returns 1, which is
  // enough to find other errors.
  std::optional<int64_t> CountOf(const ModuleSpec& module, const VarValue* over, int64_t copies) {
    const std::string& variable = module.repeat->name.value;
    if (names_.Has(variable)) {
      return diagnostics_.Error(
          module.repeat->name.span,
          fmt::format("`{}` already names a variable or an outer repeat", variable),
          "choose another name for this repeat");
    }
    const VarSpec& times = module.repeat->value;
    std::optional<int64_t> evaluated;
    if (over != nullptr) {
      evaluated = std::ssize(over->items);
    } else if (!times.is_list && times.items[0] != nullptr) {
      evaluated = EvaluateInteger(*times.items[0], names_, 1, kMaxTensors,
                                  fmt::format("the count of `{}`", variable), diagnostics_);
    }
    const int64_t count = evaluated.value_or(1);
    all_visited_ &= evaluated.has_value();
    const Span place = times.span;
    const int64_t tensors = std::max<int64_t>(1, CountTensors(module));
    if (count > kMaxTensors / copies / tensors) {
      return diagnostics_.Error(
          place, fmt::format("this makes {} × {} × {} tensors, but a spec may have at most {}",
                             copies, count, tensors, kMaxTensors));
    }
    if (count * tensors > kMaxTensors - made_) {
      return diagnostics_.Error(
          place,
          fmt::format("this makes {} × {} tensors after {} others, but a spec may have at most {}",
                      count, tensors, made_, kMaxTensors));
    }
    return count;
  }

  void ExpandMembers(const ModuleSpec& module, const std::string& path, int64_t copies) {
    const SpecScope::Variables variables(names_, module.vars, diagnostics_);
    const bool lacks = names_.lacks();
    names_.Lack(lacks || MayLack(module.vars, module.wrong.Has("vars")));
    for (const auto& member : module.members) {
      if (const auto* tensor = std::get_if<TensorSpec>(&member.value)) {
        Visit(*tensor, member.name.span, JoinPaths(path, member.name.value));
      } else {
        Expand(*std::get<std::unique_ptr<ModuleSpec>>(member.value), path, member.name.value,
               copies);
      }
    }
    names_.Lack(lacks);
  }

  void Visit(const TensorSpec& tensor, const Span& place, const std::string& path) {
    if (!IsThere(tensor)) {
      if (tensor.when) building_.why.LeaveOut(path, tensor);
      return;
    }
    if (path.size() > kLongestPath) {
      diagnostics_.Error(place, fmt::format("this path has {} bytes, but at most {} are allowed",
                                            path.size(), kLongestPath));
      all_visited_ = false;
      return;
    }
    if (tensor.when) conditions_.push_back({tensor.when.get(), names_.blocks()});
    building_.why.Begin(static_cast<size_t>(made_++), path, place, conditions_);
    visit_({path, tensor, place, fans_, tensor.stage ? &*tensor.stage : stage_,
            tensor.stage ? names_.blocks() : blocks_of_stage_});
    building_.why.End();
    if (tensor.when) conditions_.pop_back();
  }

  Building& building_;
  Diagnostics& diagnostics_;
  SpecScope& names_;
  const std::function<void(const Leaf&)>& visit_;
  const std::function<void(int64_t)>& expect_;
  const Located<std::string>* fans_;  // of the current module
  const StageSpec* stage_ = nullptr;  // of the current module
  size_t blocks_of_stage_ = 0;
  std::vector<Condition> conditions_;  // each `when` around the current tensor
  int64_t made_;
  bool all_visited_ = true;
};

}  // namespace

bool Expand(const ModuleSpec& root, int64_t before, Building& building,
            const std::function<void(const Leaf&)>& visit,
            const std::function<void(int64_t)>& expect) {
  Expander expander(before, building, visit, expect);
  expander.Expand(root, "", "", 1);
  return expander.all_visited();
}

std::string JoinPaths(const std::string& path, const std::string& name) {
  if (path.empty() || name.empty()) return path + name;
  std::string joined;
  joined.reserve(path.size() + 1 + name.size());
  return joined.append(path).append(1, '.').append(name);
}

}  // namespace shardinit
