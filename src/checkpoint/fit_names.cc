#include "checkpoint/fit_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "checkpoint/alike.h"
#include "formats/name_rows.h"
#include "plan/relayout.h"
#include "report/text.h"

namespace shardinit {
namespace {

using Joined = TensorFolder::Joined;

std::string Replaced(std::string text, std::string_view old, std::string_view by) {
  for (size_t at = text.find(old); at != text.npos; at = text.find(old, at + by.size())) {
    if (at == 0 || text[at - 1] == '.')
      text.replace(at, old.size(), by);
    else
      ++at;
  }
  return text;
}

class NameFit {
 public:
  NameFit(const Plan& plan, const TensorFolder& folder) : plan_(plan), folder_(folder) {
    for (const Tensor& tensor : plan.graph.tensors) wanted_.emplace(tensor.path(), &tensor);
    for (const Tensor& tensor : folder.plan().graph.tensors) {
      names_.push_back({&tensor, std::string(tensor.path())});
    }
  }

  // Returns names with which all tensors fit, or nothing if that is impossible.
  std::optional<std::vector<Joined>> Find() {
    if (std::ranges::none_of(names_, [&](const Named& named) { return IsExtra(named); })) return {};
    for (const NameRow& row : NameRows()) {
      if (row.kind == NameRow::Kind::kWrapper) RemoveWrapper(row);
    }
    for (const NameRow& row : NameRows()) {
      if (row.kind == NameRow::Kind::kOldName) Rename(row);
    }
    ChangePrefix();
    LeaveOut();
    std::vector<Joined> joined = Join();
    if (!Fits(joined)) return {};
    RequireTiesEqual();
    return joined;
  }

  const std::vector<std::string>& said() const { return said_; }

 private:
  struct Named {
    const Tensor* tensor;
    std::string name;
    bool is_out = false;  // whether it is left out
  };
  struct Tie {
    const Tensor *copy, *table;
  };

  bool IsExtra(const Named& named) const { return !named.is_out && !wanted_.contains(named.name); }

  static bool MayBeLeftOut(const Named& named) {
    return IsBuffer(named.name, named.tensor->shape()) ||
           FindNameRow(NameRow::Kind::kTied, named.name) != nullptr;
  }

  // Replaces each name that the plan does not have by `change(name)`. Reports `how` if any name
  // changes.
  template <typename F>
  void ChangeExtra(const F& change, const std::string& how) {
    int64_t changed = 0;
    for (Named& named : names_) {
      if (!IsExtra(named)) continue;
      std::string name = change(named.name);
      if (name == named.name) continue;
      named.name = std::move(name);
      ++changed;
    }
    if (changed > 0) said_.push_back(fmt::format("reads {} {}", Count(changed, "name"), how));
  }

  void RemoveWrapper(const NameRow& row) {
    ChangeExtra([&](const std::string& name) { return Replaced(name, row.text, ""); },
                fmt::format("without `{}`", row.text));
  }

  void Rename(const NameRow& row) {
    const std::string end = fmt::format(".{}", row.now);
    if (std::ranges::none_of(wanted_, [&](auto& of) { return of.first.ends_with(end); })) return;
    const auto change = [&](const std::string& name) {
      if (FindNameRow(row.kind, name) != &row) return name;
      std::string now = name.substr(0, name.size() - row.text.size()) + std::string(row.now);
      return now;
    };
    ChangeExtra(change, fmt::format("with `{}` for `{}`", row.now, row.text));
  }

  // Adds, removes or replaces a prefix, which is found from a name of the plan with the same end.
  void ChangePrefix() {
    for (const Named& named : names_) {
      if (!IsExtra(named)) continue;
      for (const auto& [name, tensor] : wanted_) {
        const size_t end = CommonEnd(named.name, name);
        if (end == 0) continue;
        if (TryPrefix(named.name.substr(0, named.name.size() - end),
                      std::string(name.substr(0, name.size() - end)))) {
          return;
        }
      }
      if (!MayBeLeftOut(named)) return;  // No prefix makes this one fit.
    }
  }

  // Returns the size of the longest common end of both names that begins at a part of each.
  static size_t CommonEnd(std::string_view a, std::string_view b) {
    const size_t most = std::min(a.size(), b.size());
    size_t same = 0, end = 0;
    while (same < most && a[a.size() - 1 - same] == b[b.size() - 1 - same]) {
      ++same;
      const auto begins = [&](std::string_view of) {
        return same == of.size() || of[of.size() - 1 - same] == '.';
      };
      if (begins(a) && begins(b)) end = same;
    }
    return end;
  }

  // Replaces the prefix `old` of names by `now` where they then fit. If any tensors except buffers
  // and tied tensors would not fit, changes nothing and returns false.
  bool TryPrefix(const std::string& old, const std::string& now) {
    // Replacing the prefix of only some names could confuse different modules.
    if (!old.empty() && !now.empty() &&
        std::ranges::any_of(names_, [&](auto& named) { return !named.name.starts_with(old); })) {
      return false;
    }
    const auto change = [&](const std::string& name) {
      if (!name.starts_with(old)) return name;
      std::string rest = name.substr(old.size());
      if (wanted_.contains(now + rest)) return now + rest;
      return wanted_.contains(rest) ? rest : name;
    };
    for (const Named& named : names_) {
      if (IsExtra(named) && change(named.name) == named.name && !MayBeLeftOut(named)) return false;
    }
    ChangeExtra(change, fmt::format("{}{}{}", old.empty() ? "" : fmt::format("without `{}`", old),
                                    old.empty() || now.empty() ? "" : ", ",
                                    now.empty() ? "" : fmt::format("with `{}` before them", now)));
    return true;
  }

  const Tensor* TableOf(const Named& copy) const {
    for (const Named& named : names_) {
      const bool is_table = copy.name.ends_with(".bias")
                                ? named.name.ends_with("predictions.bias")
                                : IsTokenTable(named.name) && wanted_.contains(named.name);
      if (is_table && named.tensor != copy.tensor &&
          named.tensor->shape() == copy.tensor->shape()) {
        return named.tensor;
      }
    }
    return nullptr;
  }

  void LeaveOut() {
    int64_t buffers = 0;
    std::string first;
    for (Named& named : names_) {
      if (!IsExtra(named)) continue;
      if (IsBuffer(named.name, named.tensor->shape())) {
        named.is_out = true;
        if (buffers++ == 0) first = named.tensor->path();
        continue;
      }
      if (FindNameRow(NameRow::Kind::kTied, named.name) == nullptr) continue;
      const Tensor* const table = TableOf(named);
      if (table == nullptr) continue;
      named.is_out = true;
      ties_.push_back({named.tensor, table});
    }
    if (buffers > 0) {
      said_.push_back(fmt::format("leaves out {} such as `{}`, which models recompute",
                                  Count(buffers, "buffer"), first));
    }
  }

  // Joins tensors that are one tensor in the plan. The numbers in their names are indices in its
  // first dimensions. Megatron-core stores halves of rows as two tensors.
  std::vector<Joined> Join() {
    std::map<std::string, Joined> joined;
    std::string first;
    for (const Named& named : names_) {
      if (named.is_out) continue;
      Joined::Part part = {std::string(named.tensor->path())};
      std::string name = named.name;
      Shape shape = named.tensor->shape();
      if (IsExtra(named)) {
        name.clear();
        std::string_view rest = named.name;
        const bool is_second = rest.ends_with("_v"), is_half = is_second || rest.ends_with("_w");
        if (is_half) rest.remove_suffix(2);
        while (!rest.empty()) {
          const std::string_view word = rest.substr(0, rest.find('.'));
          rest.remove_prefix(std::min(rest.size(), word.size() + 1));
          if (word.size() < 10 && word.find_first_not_of("0123456789") == word.npos) {
            part.at.push_back(std::stoll(std::string(word)));
          } else {
            name += (name.empty() ? "" : ".") + std::string(word);
          }
        }
        const auto found = wanted_.find(name);
        if (found == wanted_.end()) return {};
        const size_t before = part.at.size();
        part.at.resize(before + shape.size());
        if (is_half && !shape.empty()) part.at[before] = is_second ? shape[0] : 0;
        shape = found->second->shape();
        if (shape.size() != part.at.size() || before == 0) return {};
        if (first.empty())
          first = fmt::format("`{}` becomes `{}`", WithoutNumbers(named.name), name);
      }
      Joined& of = joined[name];
      of.name = name;
      of.shape = shape;
      of.parts.push_back(std::move(part));
    }
    if (!first.empty()) said_.push_back(fmt::format("joins tensors: {}", first));
    std::vector<Joined> all;
    for (auto& [name, of] : joined) all.push_back(std::move(of));
    return all;
  }

  // Returns whether the parts cover the whole tensor exactly once and have one type.
  bool IsWhole(const Joined& of) const {
    if (of.parts.size() == 1 && of.parts.front().at.empty()) return true;
    if (folder_.is_checkpoint()) return false;
    std::vector<Box> boxes;
    int64_t count = 0;
    std::optional<DType> dtype;
    for (const Joined::Part& part : of.parts) {
      const Tensor& tensor = *there_.at(part.name);
      if (part.at.empty() || (dtype && *dtype != tensor.dtype())) return false;
      dtype = tensor.dtype();
      Box box = {part.at, Shape(part.at.size() - tensor.shape().size(), 1)};
      box.shape.insert(box.shape.end(), tensor.shape().begin(), tensor.shape().end());
      for (size_t d = 0; d < of.shape.size(); ++d) {
        if (box.offset[d] + box.shape[d] > of.shape[d]) return false;
      }
      count += tensor.elements();
      boxes.push_back(std::move(box));
    }
    std::vector<const Box*> pointers;
    for (const Box& box : boxes) pointers.push_back(&box);
    return count == ElementCount(of.shape) && !FindOverlap(pointers);
  }

  bool Fits(const std::vector<Joined>& joined) {
    if (joined.empty()) return false;
    for (const Tensor& tensor : folder_.plan().graph.tensors)
      there_.emplace(tensor.path(), &tensor);
    InitGraph graph;
    graph.name = plan_.graph.name;
    for (const Joined& of : joined) {
      if (!IsWhole(of)) return false;
      Tensor tensor = *there_.at(of.parts.front().name);
      tensor.set_path(of.name);
      tensor.Edit().shape = of.shape;
      tensor.Edit().partition = PartitionSpec(of.shape.size());
      graph.tensors.push_back(std::move(tensor));
    }
    return IsStoredAs(MakePlan(std::move(graph)), plan_);
  }

  // Throws Error (kUsage) unless each tensor that is left out as a copy is one.
  void RequireTiesEqual() {
    for (const auto& [copy, table] : ties_) {
      if (copy->dtype() != table->dtype() || !AreEqual(folder_, *copy, *table)) {
        throw Error(
            ExitCode::kUsage,
            fmt::format("`{}` differs from `{}` in `{}`, but `{}` has one tensor for both",
                        copy->path(), table->path(), folder_.path(), plan_.graph.name),
            fmt::format("give a spec that does not tie them, such as a config.json with "
                        "`\"tie_word_embeddings\": false`, or leave one out with `--drop {}`",
                        copy->path()));
      }
      said_.push_back(
          fmt::format("leaves out `{}`, which is equal to `{}`", copy->path(), table->path()));
    }
  }

  const Plan& plan_;
  const TensorFolder& folder_;
  std::map<std::string_view, const Tensor*> wanted_, there_;
  std::vector<Named> names_;
  std::vector<Tie> ties_;
  std::vector<std::string> said_;
};

}  // namespace

TensorFolder FitNames(const Plan& plan, TensorFolder folder, std::vector<std::string>* changes) {
  NameFit fit(plan, folder);
  const auto joined = fit.Find();
  if (!joined) return folder;
  *changes = fit.said();
  return std::move(folder).Join(*joined);
}

}  // namespace shardinit
