// The folder that Hugging Face's `save_pretrained` makes: whole tensors in
// model.safetensors, or in numbered files with an index.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/safetensors/folder.h"
#include "formats/safetensors/header.h"

namespace shardinit {
namespace {

const safetensors::Metadata kMetadata = {{"format", "pt"}};

// Tensors in order, as many to a file as fit; one that is larger alone.
std::vector<std::vector<FileBox>> Distribute(const LayoutRequest& request) {
  std::vector<std::vector<FileBox>> files(1);
  int64_t bytes = 0;
  for (const Tensor* tensor : request.tensors) {
    if (!files.back().empty() && tensor->bytes() > request.max_shard_size - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back({tensor, WholeOf(tensor->shape), 0});
    bytes += tensor->bytes();
  }
  return files;
}

// model.safetensors.index.json: which tensor is in which file.
FileLayout Index(const std::vector<FileLayout>& files) {
  std::vector<std::pair<std::string_view, std::string_view>> places;
  int64_t bytes = 0, parameters = 0;
  for (const FileLayout& file : files) {
    for (const FileBox& box : file.boxes) {
      places.emplace_back(box.tensor->path, file.path);
      bytes += box.tensor->bytes();
      parameters += box.tensor->elements();
    }
  }
  std::sort(places.begin(), places.end());
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Key("metadata").BeginObject(JsonWriter::kLines);
  out.Member("total_parameters", parameters).Member("total_size", bytes).EndObject();
  out.Key("weight_map").BeginObject(JsonWriter::kLines);
  for (const auto& [path, file] : places) out.Member(path, file);
  out.EndObject().EndObject();
  return {"model.safetensors.index.json", out.Finish()};
}

std::vector<FileLayout> LayOutHuggingFace(const LayoutRequest& request) {
  auto parts = Distribute(request);
  std::vector<FileLayout> files;
  if (parts.size() == 1) {
    files.push_back(safetensors::LayOutFile("model.safetensors", std::move(parts[0]), kMetadata));
  }
  for (size_t i = 0; parts.size() > 1 && i < parts.size(); ++i) {
    files.push_back(safetensors::LayOutFile(
        fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size()), std::move(parts[i]),
        kMetadata));
  }
  if (parts.size() > 1) files.push_back(Index(files));
  if (const std::string& config = request.plan.graph.config; !config.empty()) {
    files.push_back({"config.json", nlohmann::json::parse(config).dump(2) + "\n"});
  }
  return files;
}

}  // namespace

extern const Format kSafetensors = {
    .name = "safetensors",
    .lay_out = LayOutHuggingFace,
    .reader = &safetensors::kReader,
};

}  // namespace shardinit
