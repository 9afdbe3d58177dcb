// Writes step 0 of AdamW to a DCP folder. Moments are zeros, with one item for each type and shape.
#include <map>

#include "base/error.h"
#include "formats/dcp/checkpoint.h"
#include "formats/dcp/pickle.h"
#include "graph/drawn/tie.h"

namespace shardinit::dcp {
namespace {

class StateWriter {
 public:
  void AddZeros(const std::string& path, const char* name, DType dtype, const Shape& shape) {
    const auto [item, is_new] = zeros_.try_emplace({dtype, shape}, extras_.items.size());
    if (is_new) extras_.items.push_back(MakeZeros(dtype, shape));
    extras_.entries.push_back({{"optim", "state", path, name}, item->second, {{dtype, shape}}});
  }

  void AddObject(size_t group, std::string_view name, std::string pickle) {
    const auto [item, is_new] = objects_.try_emplace(pickle, extras_.items.size());
    if (is_new) extras_.items.push_back(MakeArchive(std::move(pickle)));
    extras_.entries.push_back(
        {{"optim", "param_groups", static_cast<int64_t>(group), std::string(name)}, item->second});
  }

  Extras Finish() { return std::move(extras_); }

 private:
  Extras extras_;
  std::map<std::pair<DType, Shape>, size_t> zeros_;
  std::map<std::string, size_t> objects_;
};

struct HyperparameterWriter {
  PickleWriter& out;

  void operator()(std::nullptr_t) { out.None(); }
  void operator()(bool value) { out.Bool(value); }
  void operator()(double value) { out.Float(value); }
  void operator()(const std::pair<double, double>& value) {
    out.BeginTuple();
    out.Float(value.first);
    out.Float(value.second);
    out.EndTuple();
  }
};

}  // namespace

Extras StateOf(const LayoutRequest& request) {
  StateWriter writer;
  const OptimizerState& optimizer = *request.optimizer;
  const std::vector<ParamGroup>& groups = optimizer.spec.groups;
  std::vector<std::vector<const Tensor*>> members(groups.size());
  if (optimizer.spec.has_schedule) {
    throw Usage("the state of PyTorch's AdamW cannot contain a schedule",
                "`schedule` is for `--to zarr`; here give `lr` and `initial_lr`");
  }
  const std::unordered_set<const Tensor*> copies = FindCopies(request.plan.graph);
  for (const Tensor* tensor : request.tensors) {
    if (!InfoOf(tensor->dtype()).is_float()) continue;
    const auto group = optimizer.group_of.find(tensor);
    if (group == optimizer.group_of.end()) continue;
    // A copy may be the same parameter as another tensor: PyTorch asks for it by the first name and
    // refuses a group with more. Or it is a parameter with equal initial values, whose state exists
    // whether listed or not.
    if (!copies.contains(tensor)) members[group->second].push_back(tensor);
    writer.AddZeros(std::string(tensor->path()), "step", DType::f32, {});
    writer.AddZeros(std::string(tensor->path()), "exp_avg", tensor->dtype(), tensor->shape());
    writer.AddZeros(std::string(tensor->path()), "exp_avg_sq", tensor->dtype(), tensor->shape());
    if (groups[group->second].amsgrad) {
      writer.AddZeros(std::string(tensor->path()), "max_exp_avg_sq", tensor->dtype(),
                      tensor->shape());
    }
  }
  for (size_t g = 0; g < groups.size() && optimizer.has_hyperparameters(); ++g) {
    for (const auto& [name, value] : groups[g].hyperparameters) {
      PickleWriter out;
      std::visit(HyperparameterWriter{out}, value);
      writer.AddObject(g, name, out.Finish());
    }
    PickleWriter out;
    out.BeginList();
    for (const Tensor* tensor : members[g]) out.Text(tensor->path());
    out.EndList();
    writer.AddObject(g, "params", out.Finish());
  }
  return writer.Finish();
}

}  // namespace shardinit::dcp
