// Lays out the folder of Hugging Face's `save_pretrained`: whole tensors in model.safetensors, or
// in numbered files with an index.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "formats/foreign_names.h"
#include "formats/safetensors/file.h"
#include "graph/stored/view.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

safetensors::Metadata MetadataOf(const LayoutRequest& request) {
  safetensors::Metadata metadata = {{"format", "pt"}};
  metadata.insert(metadata.end(), request.metadata.begin(), request.metadata.end());
  return metadata;
}

// Returns model.safetensors.index.json, which lists the file of each tensor.
FileLayout Index(const std::vector<FileLayout>& files) {
  std::vector<std::pair<std::string_view, std::string_view>> places;
  int64_t bytes = 0, parameters = 0;
  for (const FileLayout& file : files) {
    for (const FileBox& box : file.boxes) {
      places.emplace_back(box.tensor->path(), file.path);
      bytes += box.tensor->bytes();
      parameters += ParametersOf(*box.tensor);
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

// Returns Transformers' name of a type that whole models can have; empty for other types.
std::string_view NameInConfig(DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  return info.is_float() && info.bytes > 1 ? ForeignNamesOf(dtype).torch : std::string_view();
}

bool IsNameInConfig(const nlohmann::json& name) {
  return std::any_of(DTypes().begin(), DTypes().end(), [&](const DTypeInfo& info) {
    const std::string_view known = NameInConfig(info.dtype);
    return !known.empty() && name == known;
  });
}

bool Rounds(double value, DType from, DType to) {
  const auto stored = [value](DType dtype) {
    uint64_t bits = 0;
    EncodeNumber(value, dtype, &bits);
    return Decode(&bits, dtype);
  };
  return stored(from) != stored(to);
}

bool Rounds(const Tensor& tensor, DType to);

bool Rounds(const ViewNode& node, const View& view, DType from, DType to) {
  if (node.operation == nullptr) return Rounds((*view.drawn)[node.tensor], to);
  const auto argument = [=](const ViewArgument& value) {  // the value that `pad` fills with
    return std::holds_alternative<double>(value) && Rounds(std::get<double>(value), from, to);
  };
  const auto part = [&](const ViewNode& of) { return Rounds(of, view, from, to); };
  return std::any_of(node.arguments.begin(), node.arguments.end(), argument) ||
         std::any_of(node.of.begin(), node.of.end(), part);
}

// Returns whether elements may change when the tensor is loaded as type `to`. Integers do not
// change.
bool Rounds(const Tensor& tensor, DType to) {
  const DTypeInfo &from = InfoOf(tensor.dtype()), &into = InfoOf(to);
  if (!from.is_float() ||
      (into.exponent_bits >= from.exponent_bits && into.mantissa_bits >= from.mantissa_bits)) {
    return false;
  }
  if (tensor.view() != nullptr)
    return Rounds(tensor.view()->root, *tensor.view(), tensor.dtype(), to);
  const auto* constant = std::get_if<Constant>(&tensor.distribution());
  return constant == nullptr || Rounds(constant->value, tensor.dtype(), to);
}

// Returns the type that `from_pretrained` gives all floating-point tensors: the type of the most
// elements or, if that would round others, one that holds all. Empty if the model has no such type.
std::string_view DTypeOf(const std::vector<Tensor>& tensors) {
  std::map<DType, int64_t> elements;
  for (const Tensor& tensor : tensors) {
    if (!NameInConfig(tensor.dtype()).empty()) elements[tensor.dtype()] += tensor.elements();
  }
  if (elements.empty()) return {};
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  for (const DType dtype : {most->first, DType::f32}) {
    const auto rounds = [dtype](const Tensor& tensor) { return Rounds(tensor, dtype); };
    if (std::none_of(tensors.begin(), tensors.end(), rounds)) return NameInConfig(dtype);
  }
  return NameInConfig(DType::f64);
}

// Sets the type in a config and in nested configs: the tensors have this type, whatever the config
// was captured or written with. (Before version 5 of Transformers, the key was `torch_dtype`.)
void SetDType(nlohmann::json& object, std::string_view dtype) {
  for (auto& [key, value] : object.items()) {
    if ((key == "dtype" || key == "torch_dtype") && IsNameInConfig(value)) value = dtype;
    if (value.is_object() && value.contains("model_type")) SetDType(value, dtype);
  }
}

// Returns whether the model works without token ids: it generates text, or nothing is known of it.
// Others, such as CLIP with its end token, compare their input with an id and fail without one.
bool NeedsNoTokenIds(const nlohmann::json& config) {
  if (!config.contains("architectures")) return true;
  const std::string of = config["architectures"].dump();
  return of.find("CausalLM") != of.npos || of.find("LMHead") != of.npos;
}

// Sets each `…_token_id` that is not one of the `vocab_size` tokens to null, as a spec's vocabulary
// may be smaller than its model's. (Transformers' default for a removed key is an id, too.) Removes
// such ids from lists. With `padding_alone`, changes only the padding id, because no table can be
// made with an unknown one.
void RemoveUnknownTokens(nlohmann::json& object, bool padding_alone,
                         nlohmann::json vocabulary = nullptr) {
  if (object.contains("vocab_size")) vocabulary = object["vocab_size"];
  const auto is_unknown = [&](const nlohmann::json& id) {
    return vocabulary.is_number() && id.is_number_integer() && id >= vocabulary;
  };
  for (auto& [key, value] : object.items()) {
    if (value.is_object()) RemoveUnknownTokens(value, padding_alone, vocabulary);
    if (!std::string_view(key).ends_with(padding_alone ? "pad_token_id" : "_token_id")) continue;
    if (value.is_array() && std::any_of(value.begin(), value.end(), is_unknown)) {
      value.erase(std::remove_if(value.begin(), value.end(), is_unknown), value.end());
      if (value.empty()) value = nullptr;
    } else if (is_unknown(value)) {
      value = nullptr;
    }
  }
}

// Returns whether the tensors are adapters for another model, which PEFT loads.
bool IsOfAdapters(const InitGraph& graph) {
  return !graph.config.empty() && nlohmann::json::parse(graph.config).contains("peft_type");
}

// Returns the spec's `config`, completed with values that follow from the spec.
std::string ConfigText(const InitGraph& graph) {
  nlohmann::json config = nlohmann::json::parse(graph.config);
  // Diffusers' and PEFT's configurations have no type, and their classes accept none.
  if (config.contains("_class_name") || IsOfAdapters(graph)) return config.dump(2) + "\n";
  if (const std::string_view dtype = DTypeOf(graph.tensors); !dtype.empty()) {
    if (!config.contains("dtype") && !config.contains("torch_dtype")) config["dtype"] = dtype;
    SetDType(config, dtype);
  }
  RemoveUnknownTokens(config, !NeedsNoTokenIds(config));
  return config.dump(2) + "\n";
}

std::vector<FileLayout> LayOutHuggingFace(const LayoutRequest& request) {
  std::vector<std::vector<FileBox>> tensors;
  for (const Tensor* tensor : request.tensors) {
    tensors.push_back({{tensor, WholeOf(tensor->shape()), 0}});
  }
  auto parts = DistributeToFiles(tensors, request.options.at(&kMaxShardSize));
  const InitGraph& graph = request.plan.graph;
  const bool is_adapter = IsOfAdapters(graph);
  if (is_adapter && parts.size() > 1) {
    throw Usage(fmt::format("adapters in {} files of at most {} bytes each, but PEFT reads one",
                            parts.size(), request.options.at(&kMaxShardSize)),
                fmt::format("give a larger {}", kMaxShardSize.flag));
  }
  std::vector<FileLayout> files;
  if (parts.size() == 1) {
    files.push_back(
        safetensors::LayOutFile(is_adapter ? "adapter_model.safetensors" : "model.safetensors",
                                std::move(parts[0]), MetadataOf(request)));
  }
  for (size_t i = 0; parts.size() > 1 && i < parts.size(); ++i) {
    files.push_back(safetensors::LayOutFile(
        fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size()), std::move(parts[i]),
        MetadataOf(request)));
  }
  if (parts.size() > 1) files.push_back(Index(files));
  if (!graph.config.empty()) {
    files.push_back({is_adapter ? "adapter_config.json" : "config.json", ConfigText(graph)});
  }
  return files;
}

}  // namespace

extern const Format kSafetensors = {
    .name = "safetensors",
    .description = "a folder as from the Hugging Face Hub, for Transformers, vLLM and others",
    .lay_out = LayOutHuggingFace,
    .reader = &kSafetensorsReader,
    .options = {&kMaxShardSize},
    .globbed = {"*.safetensors", "*.safetensors.index.json"},
};

}  // namespace shardinit
