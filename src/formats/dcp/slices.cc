// Refuses a state_dict that seems to be one rank's part of a model.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "bucket/url.h"
#include "formats/dcp/saved.h"
#include "formats/foreign_names.h"
#include "report/text.h"

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

void RequireReplica(const std::string& name, const TensorInFolder& whole, const Box& box,
                    const TensorInFolder& copy) {
  const DTypeInfo* const dtype = FindDType(&ForeignNames::torch, copy.dtype);
  const int64_t count = ElementCount(copy.shape);
  if (dtype == nullptr || whole.pieces.empty() || copy.pieces.empty()) return;
  const std::string& path = copy.pieces[0].file;
  if (count * dtype->bytes > kMostInReplica || IsUrl(path)) return;
  constexpr int64_t kBlock = 1 << 16;
  std::string wanted(static_cast<size_t>(kBlock * dtype->bytes), '\0'), found = wanted;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t many = std::min(kBlock, count - first);
    ReadPieces(whole.pieces, dtype->bytes, box, first, many, wanted.data());
    ReadPieces(copy.pieces, dtype->bytes, WholeOf(copy.shape), first, many, found.data());
    const auto end = wanted.begin() + many * dtype->bytes;
    const int64_t same = std::mismatch(wanted.begin(), end, found.begin()).first - wanted.begin();
    if (same == many * dtype->bytes) continue;
    const Box at = FirstBox(copy.shape, first + same / dtype->bytes, 1);
    Box in_whole = at;
    for (size_t d = 0; d < at.offset.size(); ++d) in_whole.offset[d] += box.offset[d];
    const auto other = std::ranges::find_if(
        whole.pieces, [&](const FilePiece& piece) { return Overlap(piece.box, in_whole); });
    throw Error(ExitCode::kRefused,
                fmt::format("{} in `{}` and `{}` should be equal but differs at {}", Quote(name),
                            Escape(other->file), Escape(path), InShape(at.offset)),
                "choose the rank whose copy is right, and save the checkpoint again");
  }
}

void RefuseSlices(const Value& root, const std::string& path) {
  RefuseDivided(root, path);
  RefuseWithoutParameters(root, path);
}

}  // namespace shardinit::dcp
