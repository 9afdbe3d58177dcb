// The folder that Hugging Face's `save_pretrained` makes: whole tensors in
// model.safetensors, or in numbered files with an index.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/safetensors/folder.h"
#include "formats/safetensors/header.h"

namespace shardinit {
namespace {

const safetensors::Metadata kMetadata = {{"format", "pt"}};

// Tensors in order, as many to a file as fit; one that is larger alone.
std::vector<std::vector<FileBox>> Distribute(const LayoutRequest& request) {
  const int64_t most = request.options.at(&kMaxShardSize);
  std::vector<std::vector<FileBox>> files(1);
  int64_t bytes = 0;
  for (const Tensor* tensor : request.tensors) {
    if (!files.back().empty() && tensor->bytes() > most - bytes) {
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

// As Transformers calls a type that whole models can have; else empty.
std::string_view NameInConfig(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      return {};
  }
}

// That of the most elements; empty if the model has no such type.
std::string_view DTypeOf(const std::vector<Tensor>& tensors) {
  std::map<std::string_view, int64_t> elements;
  for (const Tensor& tensor : tensors) elements[NameInConfig(tensor.dtype)] += tensor.elements();
  elements.erase(std::string_view());
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  return most == elements.end() ? std::string_view() : most->first;
}

// Makes null what says `…_token_id` and is none of the `vocab_size` tokens, as where a spec's
// vocabulary is smaller than its model's. (Not absent: Transformers' default is an id, too.) Of a
// list it takes such ids away.
void RemoveUnknownTokens(nlohmann::json& object, nlohmann::json vocabulary = nullptr) {
  if (object.contains("vocab_size")) vocabulary = object["vocab_size"];
  const auto is_unknown = [&](const nlohmann::json& id) {
    return vocabulary.is_number() && id.is_number_integer() && id >= vocabulary;
  };
  for (auto& [key, value] : object.items()) {
    if (value.is_object()) RemoveUnknownTokens(value, vocabulary);
    if (!std::string_view(key).ends_with("_token_id")) continue;
    if (value.is_array() && std::any_of(value.begin(), value.end(), is_unknown)) {
      value.erase(std::remove_if(value.begin(), value.end(), is_unknown), value.end());
      if (value.empty()) value = nullptr;
    } else if (is_unknown(value)) {
      value = nullptr;
    }
  }
}

// The spec's `config`, and what follows from the spec.
std::string ConfigText(const InitGraph& graph) {
  nlohmann::json config = nlohmann::json::parse(graph.config);
  const std::string_view dtype = DTypeOf(graph.tensors);
  // Before version 5 of Transformers it was called `torch_dtype`.
  if (!dtype.empty() && !config.contains("dtype") && !config.contains("torch_dtype")) {
    config["dtype"] = dtype;
  }
  RemoveUnknownTokens(config);
  return config.dump(2) + "\n";
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
  const InitGraph& graph = request.plan.graph;
  if (!graph.config.empty()) files.push_back({"config.json", ConfigText(graph)});
  return files;
}

}  // namespace

extern const Format kSafetensors = {
    .name = "safetensors",
    .lay_out = LayOutHuggingFace,
    .reader = &safetensors::kReader,
    .options = {&kMaxShardSize},
    .globbed = {"*.safetensors", "*.safetensors.index.json"},
};

}  // namespace shardinit
