// Refuses a state_dict that seems to be one rank's part of a model.
#include <fmt/format.h>

#include <string_view>

#include "base/text.h"
#include "formats/dcp/saved.h"

namespace shardinit::dcp {
namespace {

constexpr std::string_view kOfZero = "name the folder instead";

// Refuses files of ZeRO-3, which stores the parameters in the optimizer's files.
void RefuseWithoutParameters(const Value& root, const std::string& path) {
  const Value* const groups = root.Find("param_shapes");
  const Value* const module = root.Find("module");
  if (groups == nullptr || module == nullptr) return;
  const Value* missing = nullptr;
  for (const Value* shapes : groups->items) {
    if (shapes->kind != Value::Kind::kDict) continue;
    for (size_t i = 0; i + 1 < shapes->items.size(); i += 2) {
      const Value* const tensor = module->Find(shapes->items[i]->text);
      if (tensor != nullptr && IsTensor(*tensor) &&
          TensorOf(*tensor, path).shape == ShapeOf(shapes->items[i + 1], path, "shape")) {
        return;  // One is enough: the parameters are here.
      }
      missing = shapes->items[i];
    }
  }
  if (missing == nullptr) return;
  Refuse(path, "it contains one rank's part of the model: ZeRO keeps {} in other files: {}",
         Quote(missing->text), kOfZero);
}

}  // namespace

const Value* MemberOf(const Value* of, const char* name) {
  if (of == nullptr) return nullptr;
  return (of->State() != nullptr ? of->State() : of)->Find(name);
}

void RefuseDivided(const Value& root, const std::string& path) {
  const struct {
    const char *within, *name, *hint;
  } sizes[] = {
      {"args", "tensor_model_parallel_size", "save it with `--ckpt-format torch_dist`"},
      {"args", "pipeline_model_parallel_size", "save it with `--ckpt-format torch_dist`"},
      {"args", "expert_model_parallel_size", "save it with `--ckpt-format torch_dist`"},
      {nullptr, "mp_world_size", "join its ranks with the trainer that wrote it"},
  };
  for (const auto& [within, name, hint] : sizes) {
    const Value* const of = within == nullptr ? &root : root.Find(within);
    const Value* const size = MemberOf(of, name);
    if (size == nullptr || size->kind != Value::Kind::kInt || size->number <= 1) continue;
    Refuse(path, "it contains one rank's part of the model: `{}{}` is {}: {}",
           within == nullptr ? "" : fmt::format("{}.", within), name, size->number, hint);
  }
}

void RefuseSlices(const Value& root, const std::string& path) {
  RefuseDivided(root, path);
  RefuseWithoutParameters(root, path);
}

}  // namespace shardinit::dcp
