// Lays out the files of Keras's `save_weights`. In an HDF5 file, the variables of a layer are
// datasets 0, 1, … of the group `vars` under the layer's path. If there are several such files, a
// JSON file lists the file of each layer.
#include <fmt/format.h>

#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "formats/format.h"
#include "formats/hdf5/writer.h"

namespace shardinit {
namespace {

// Returns -1 unless `part` is a number as Keras writes it.
int64_t NumberIn(std::string_view part) {
  const int64_t number = ParseNumber<int64_t>(part).value_or(-1);
  return number >= 0 && (part.size() == 1 || part[0] != '0') ? number : -1;
}

// Keras counts layers of one name as `dense`, `dense_1`, …; `repeat` counts them as `dense.0`,
// `dense.1`, …. A number within a path becomes part of the name before it.
std::string VariablePath(const Tensor& tensor) {
  std::string path;
  for (std::string_view rest = tensor.path();;) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const int64_t number = path.empty() || dot == rest.npos ? -1 : NumberIn(part);
    if (number > 0) path.append("_").append(part);
    if (number < 0) path.append("/").append(part);
    if (dot == rest.npos) return path;
    rest.remove_prefix(dot + 1);
  }
}

std::string_view GroupOf(std::string_view path) { return path.substr(0, path.rfind('/')); }

// Collects the tensors with one kind of fault: names the first, and counts all.
struct FaultyTensors {
  std::string about, hint;
  int64_t count = 0;

  void Add(const Tensor& tensor, std::string_view wrong) {
    if (++count == 1) about = fmt::format("`{}` {}", tensor.path(), wrong);
  }
  void ThrowIfAny() const {
    if (count == 0) return;
    const std::string more = count == 1 ? "" : fmt::format(" (and {} more)", count - 1);
    throw Usage(about + more, hint);
  }
};

void CheckVariables(const std::vector<const Tensor*>& tensors) {
  FaultyTensors path{"",
                     "use paths such as `layers.dense.vars.0`, directly or with a layout; "
                     "shardinit-export(1) describes how to list a model's paths"};
  // Keras writes fp8 as untyped bytes, which it cannot read back.
  FaultyTensors dtype{"", "give it another dtype, or leave it out with `--only`"};
  FaultyTensors twice{
      "", "a number after a name counts layers: `dense.0` is `dense`, `dense.1` is `dense_1`"};
  FaultyTensors gap{"", "Keras loads all variables of a layer, numbered from 0, or none"};
  std::unordered_map<std::string, const Tensor*> paths;
  for (const Tensor* tensor : tensors) {
    const std::string name = VariablePath(*tensor);
    if (!GroupOf(name).ends_with("/vars") || tensor->path().find('/') != std::string_view::npos)
      path.Add(*tensor, "is not the path of a variable of Keras");
    const DTypeInfo& info = InfoOf(tensor->dtype());
    if (info.kind == DTypeKind::kCarried || (info.bytes == 1 && info.is_float())) {
      dtype.Add(*tensor,
                fmt::format("is {}, which Keras does not load", InfoOf(tensor->dtype()).name));
    }
    const auto [other, is_new] = paths.emplace(name, tensor);
    if (!is_new) {
      twice.Add(*tensor, fmt::format("and `{}` are both `{}` in Keras", other->second->path(),
                                     name.substr(1)));
    }
  }
  for (const Tensor* tensor : tensors) {
    const std::string name = VariablePath(*tensor);
    const std::string_view group = GroupOf(name);
    for (std::string_view above = group; !above.empty(); above = GroupOf(above)) {
      if (const auto other = paths.find(std::string(above)); other != paths.end()) {
        twice.Add(*tensor, fmt::format("would be inside `{}` in Keras", other->second->path()));
      }
    }
    const int64_t number = NumberIn(std::string_view(name).substr(group.size() + 1));
    if (number > 0 && paths.count(fmt::format("{}/{}", group, number - 1)) == 0) {
      gap.Add(*tensor, fmt::format("is given without variable {} of its layer", number - 1));
    }
  }
  for (const FaultyTensors* complaint : {&path, &dtype, &twice, &gap}) complaint->ThrowIfAny();
}

// Distributes whole layers to files.
std::vector<std::vector<FileBox>> DistributeLayers(const LayoutRequest& request) {
  std::vector<std::vector<FileBox>> layers;
  std::unordered_map<std::string, size_t> places;
  for (const Tensor* tensor : request.tensors) {
    const auto [place, is_new] = places.emplace(GroupOf(VariablePath(*tensor)), layers.size());
    if (is_new) layers.emplace_back();
    layers[place->second].push_back({tensor, WholeOf(tensor->shape()), 0});
  }
  return DistributeToFiles(layers, request.options.at(&kMaxShardSize));
}

// Returns model.weights.json, as Keras's ShardedH5IOStore reads it.
FileLayout LayOutMap(const std::vector<FileLayout>& files) {
  std::map<std::string, std::string_view> places;
  int64_t bytes = 0;
  for (const FileLayout& file : files) {
    for (const FileBox& box : file.boxes) {
      places.emplace(GroupOf(VariablePath(*box.tensor)), file.path);
      bytes += BytesOf(box);
    }
  }
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Key("metadata").BeginObject();
  out.Member("total_size", bytes).EndObject();
  out.Key("weight_map").BeginObject(JsonWriter::kLines);
  for (const auto& [group, file] : places) out.Member(group, file);
  out.EndObject().EndObject();
  return {"model.weights.json", out.Finish()};
}

std::vector<FileLayout> LayOutKeras(const LayoutRequest& request) {
  CheckVariables(request.tensors);
  auto parts = DistributeLayers(request);
  std::vector<FileLayout> files;
  for (size_t i = 0; i < parts.size(); ++i) {
    files.push_back(hdf5::LayOutKerasFile(
        parts.size() == 1 ? "model.weights.h5" : fmt::format("model_{:05}.weights.h5", i),
        std::move(parts[i]), VariablePath));
  }
  if (files.size() > 1) files.push_back(LayOutMap(files));
  return files;
}

}  // namespace

extern const Format kKeras = {
    .name = "keras",
    .description = ".weights.h5 files of Keras 3",
    .lay_out = LayOutKeras,
    .options = {&kMaxShardSize},
    .globbed = {"*.h5", "*.keras", "*.weights.json"},
};

}  // namespace shardinit
