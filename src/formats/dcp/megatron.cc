// Lays out Megatron-core's `torch_dist` folder, which is a checkpoint of
// torch.distributed.checkpoint. metadata.json names the format, and common.pt has everything that
// is not sharded. Each module that can compute in 8 bits has an empty object `_extra_state` for its
// 8-bit state.
#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "formats/dcp/checkpoint.h"
#include "formats/dcp/pickle.h"

namespace shardinit {
namespace {

// Returns the module of a matrix with such a state; empty for other tensors.
std::string_view ModuleOf(std::string_view path) {
  constexpr std::string_view kWeight = ".weight";
  if (!path.starts_with("decoder.layers.") && !path.starts_with("mtp.layers.")) return {};
  if (!path.ends_with(kWeight)) return {};
  path.remove_suffix(kWeight.size());
  const std::string_view name = path.substr(path.rfind('.') + 1);
  return name.starts_with("linear_") || name == "eh_proj" ? path : std::string_view();
}

// Adds a state for each matrix in the tensor, which stacks them by layer, or by layer and expert.
void AddStates(const Tensor& tensor, std::vector<std::string>* names) {
  const std::string_view module = ModuleOf(tensor.path());
  const size_t stacked = tensor.shape().size() - std::min<size_t>(2, tensor.shape().size());
  if (module.empty() || stacked > 2) return;
  const int64_t layers = stacked > 0 ? tensor.shape()[0] : 1;
  for (int64_t i = 0; i < layers; ++i) {
    if (stacked < 2) {
      names->push_back(fmt::format("{}._extra_state/shard_{}_{}", module, i, layers));
      continue;
    }
    for (int64_t j = 0; j < tensor.shape()[1]; ++j) {
      names->push_back(fmt::format("{}._extra_state/shard_{}.{}_{}.{}", module, i, j, layers,
                                   tensor.shape()[1]));
    }
  }
}

std::vector<FileLayout> LayOutMegatron(const LayoutRequest& request) {
  std::vector<std::string> names;
  for (const Tensor* tensor : request.tensors) AddStates(*tensor, &names);
  if (names.empty()) {
    throw Usage(
        "no tensor has a Megatron-core name such as "
        "`decoder.layers.self_attention.linear_qkv.weight`",
        "store the tensors under its names: `--layout torch_dist` of a spec in `configs/`");
  }
  dcp::PickleWriter none, nothing;
  none.BeginList();
  none.None();
  none.EndList();
  dcp::Extras states{.items = {dcp::MakeArchive(none.Finish())}};
  for (std::string& name : names) states.entries.push_back({{std::move(name)}, 0});
  nothing.Dict([] {});
  JsonWriter json;
  json.BeginObject().Member("sharded_backend", "torch_dist").Member("sharded_backend_version", 1);
  json.Member("common_backend", "torch").Member("common_backend_version", 1).EndObject();
  std::vector<FileLayout> files = dcp::LayOutCheckpoint(request, {}, states);
  files.insert(files.end() - 1, {{"common.pt", dcp::MakeArchive(nothing.Finish())},
                                 {"metadata.json", json.Finish()}});
  return files;
}

}  // namespace

extern const Format kMegatron = {
    .name = "megatron",
    .description = "Megatron-core's torch_dist, for Megatron-LM and NeMo",
    .lay_out = LayOutMegatron,
    .reader = &kDcpReader,
    .globbed = {"*.distcp"},
};

}  // namespace shardinit
