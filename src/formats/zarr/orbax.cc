// Lays out the folder that Orbax makes without OCDBT: a zarr array for each tensor, and a
// description of the tree whose leaves they are. TensorStore opens each array separately.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/json.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/zarr/chunks.h"

namespace shardinit {
namespace {

// Returns the length of the chunks of a dimension that is sharded in `parts`: a shard if all shards
// are equally long. Otherwise it is slightly less than a shard, because all chunks must be equally
// long, or else the whole dimension.
int64_t ChunkOf(int64_t extent, int64_t parts) {
  const int64_t shard = CeilDiv(extent, parts);
  for (int64_t chunk = shard; 2 * chunk > shard; --chunk) {
    if (extent % chunk == 0) return chunk;
  }
  return extent;
}

Shape ChunkOf(const Tensor& tensor, const Mesh& mesh) {
  Shape chunk;
  for (size_t d = 0; d < tensor.shape().size(); ++d) {
    const DimensionPartition& by = tensor.partition().dimensions[d];
    chunk.push_back(ChunkOf(tensor.shape()[d], DivisorOf(by, mesh)));
  }
  return chunk;
}

// An array of zeros needs no chunks.
enum class Fill { kNone, kZero };

std::string Array(DType dtype, const Shape& shape, const Shape& chunk, Fill fill) {
  JsonWriter out;
  out.BeginObject().Member("chunks", chunk).Member("compressor", nullptr);
  out.Member("dimension_separator", ".").Member("dtype", ForeignNamesOf(dtype).zarr);
  if (fill == Fill::kNone) {
    out.Member("fill_value", nullptr);
  } else if (dtype == DType::boolean) {
    out.Member("fill_value", false);
  } else {
    out.Member("fill_value", 0);
  }
  out.Member("filters", nullptr).Member("order", "C");
  out.Member("shape", shape).Member("zarr_format", 2).EndObject();
  return out.Finish();
}

// A leaf of the tree.
struct TreeLeaf {
  struct Key {
    std::string text;
    // True for an index of a sequence, false for a dictionary's key or an attribute's name.
    bool is_index = false;
  };
  std::vector<Key> keys;
  std::optional<Shape> chunk;  // nullopt if the leaf is `None`, without an array
};

// Adds the parts of a path as keys of nested dictionaries.
void AddParts(std::string_view path, std::vector<TreeLeaf::Key>* keys) {
  for (std::string_view rest = path;;) {
    const size_t dot = rest.find('.');
    keys->push_back({std::string(rest.substr(0, dot))});
    if (dot == rest.npos) return;
    rest.remove_prefix(dot + 1);
  }
}

// Quotes a text as Python's `repr` does.
std::string Repr(std::string_view text) {
  const bool has_double = text.find('\'') != text.npos && text.find('"') == text.npos;
  std::string out(1, has_double ? '"' : '\'');
  for (const char c : text) {
    if (c == '\\' || (c == '\'' && !has_double)) out += '\\';
    out += c;
  }
  return out + out[0];
}

// Refuses names that cannot be names of folders.
void RequireFolderName(std::string_view name) {
  constexpr size_t kLongest = 255;  // bytes, on all usual file systems
  const std::string_view wrong = name.find('/') != name.npos   ? "it has a slash"
                                 : name == "." || name == ".." ? "it leads out of the folder"
                                 : name.size() > kLongest      ? "it is longer than 255 bytes"
                                                               : "";
  if (wrong.empty()) return;
  throw Usage(fmt::format("`{}` cannot be the name of a zarr array's folder: {}", name, wrong),
              "write another format, or leave the tensor out with `--drop`");
}

// Returns the folder of a leaf.
std::string FolderOf(const std::vector<TreeLeaf::Key>& keys) {
  std::string folder;
  for (const TreeLeaf::Key& key : keys) folder += (folder.empty() ? "" : ".") + key.text;
  return folder;
}

// Returns _METADATA, the tree. Leaves with the value type np.ndarray can be restored as NumPy
// arrays without a sharding, and as jax.Arrays with one.
std::string Tree(const std::vector<TreeLeaf>& leaves, bool has_zeros) {
  constexpr int kSequence = 1, kDictionary = 2;
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Key("tree_metadata").BeginObject(JsonWriter::kLines);
  for (const TreeLeaf& leaf : leaves) {
    std::vector<std::string> parts;
    for (const TreeLeaf::Key& key : leaf.keys) parts.push_back(Repr(key.text));
    // The key is a tuple as Python prints it.
    out.Key(fmt::format("({}{})", fmt::join(parts, ", "), parts.size() == 1 ? "," : ""));
    out.BeginObject().Key("key_metadata").BeginArray();
    for (const TreeLeaf::Key& key : leaf.keys) {
      out.BeginObject().Member("key", key.text);
      out.Member("key_type", key.is_index ? kSequence : kDictionary).EndObject();
    }
    out.EndArray().Key("value_metadata").BeginObject();
    out.Member("value_type", leaf.chunk ? "np.ndarray" : "None");
    out.Member("skip_deserialize", !leaf.chunk);
    if (leaf.chunk) out.Member("write_shape", *leaf.chunk);
    out.EndObject().EndObject();
  }
  out.EndObject().Member("use_ocdbt", false).Member("use_zarr3", false);
  out.Member("store_array_data_equal_to_fill_value", !has_zeros).Member("custom_metadata", nullptr);
  out.EndObject();
  return out.Finish();
}

// Returns _CHECKPOINT_METADATA, which names the Orbax handler that reads the folder.
std::string Handler() {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Member("item_handlers",
             "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler");
  out.Key("metrics").BeginObject().EndObject().Key("performance_metrics").BeginObject().EndObject();
  out.Member("init_timestamp_nsecs", nullptr).Member("commit_timestamp_nsecs", nullptr);
  out.Key("custom_metadata").BeginObject().EndObject().EndObject();
  return out.Finish();
}

class Layer {
 public:
  void AddTensor(const Tensor& tensor, const std::vector<TreeLeaf::Key>& prefix,
                 const Shape& chunk) {
    std::vector<TreeLeaf::Key> keys = prefix;
    AddParts(tensor.path(), &keys);
    RequireFolderName(FolderOf(keys));
    const std::string folder =
        AddArray(std::move(keys), tensor.dtype(), tensor.shape(), chunk, Fill::kNone);
    ForEachChunk(tensor.shape(), chunk, ".", [&](const std::string& name, Box box) {
      files_.push_back({folder + "/" + name, "", {{&tensor, std::move(box), 0}}});
    });
  }

  // Adds an array of zeros.
  void AddZeros(std::vector<TreeLeaf::Key> keys, DType dtype, const Shape& shape,
                const Shape& chunk) {
    has_zeros_ = true;
    AddArray(std::move(keys), dtype, shape, chunk, Fill::kZero);
  }

  void AddNoneLeaf(std::vector<TreeLeaf::Key> keys) {
    leaves_.push_back({std::move(keys), std::nullopt});
  }

  std::vector<FileLayout> Finish() {
    files_.push_back({"_METADATA", Tree(leaves_, has_zeros_)});
    files_.push_back({"_CHECKPOINT_METADATA", Handler()});
    return std::move(files_);
  }

 private:
  std::string AddArray(std::vector<TreeLeaf::Key> keys, DType dtype, const Shape& shape,
                       const Shape& chunk, Fill fill) {
    std::string folder = FolderOf(keys);
    files_.push_back({folder + "/.zarray", Array(dtype, shape, chunk, fill)});
    leaves_.push_back({std::move(keys), chunk});
    return folder;
  }

  std::vector<TreeLeaf> leaves_;
  std::vector<FileLayout> files_;
  bool has_zeros_ = false;
};

constexpr std::string_view kParams = "params.";

// Adds the state of `optax.adamw(learning_rate)`, which is `(ScaleByAdamState(count, mu, nu),
// EmptyState(), EmptyState())`; with a schedule, the last element is `ScaleByScheduleState(count)`.
// Also adds a trainer's step, so that the tree is like Flax's TrainState.
void AddOptimizer(const LayoutRequest& request, bool has_params, Layer* layer) {
  if (request.optimizer->has_hyperparameters()) {
    throw Usage("the state of Optax does not contain hyperparameters",
                "with `--to zarr` leave them out: `--optimizer adamw`");
  }
  for (const Tensor* tensor : request.tensors) {
    if (!has_params || (tensor->path() != "step" && !tensor->path().starts_with("opt_state.")))
      continue;
    throw Usage(fmt::format("`{}` is the name of a part of the optimizer's state", tensor->path()),
                "leave it out with `--only 'params.*'`");
  }
  const TreeLeaf::Key state{"opt_state"}, adam{"0", true};
  layer->AddZeros({state, adam, {"count"}}, DType::i32, {}, {});
  for (const char* moment : {"mu", "nu"}) {
    for (const Tensor* tensor : request.tensors) {
      std::string_view path = tensor->path();
      if (!request.optimizer->group_of.contains(tensor)) continue;
      if (has_params && !path.starts_with(kParams)) continue;
      if (has_params) path.remove_prefix(kParams.size());
      std::vector<TreeLeaf::Key> keys = {state, adam, {moment}};
      AddParts(path, &keys);
      layer->AddZeros(std::move(keys), tensor->dtype(), tensor->shape(),
                      ChunkOf(*tensor, request.plan.graph.mesh));
    }
  }
  layer->AddNoneLeaf({state, {"1", true}});
  if (request.optimizer->spec.has_schedule) {
    layer->AddZeros({state, {"2", true}, {"count"}}, DType::i32, {}, {});
  } else {
    layer->AddNoneLeaf({state, {"2", true}});
  }
  layer->AddZeros({{"step"}}, DType::i64, {}, {});
}

std::vector<FileLayout> LayOut(const LayoutRequest& request) {
  Layer layer;
  // Paths that are already under `params` stay there, next to other collections.
  const bool has_params =
      std::any_of(request.tensors.begin(), request.tensors.end(),
                  [](const Tensor* tensor) { return tensor->path().starts_with(kParams); });
  const bool is_nested = request.optimizer != nullptr && !has_params;
  for (const Tensor* tensor : request.tensors) {
    layer.AddTensor(
        *tensor, is_nested ? std::vector<TreeLeaf::Key>{{"params"}} : std::vector<TreeLeaf::Key>(),
        ChunkOf(*tensor, request.plan.graph.mesh));
  }
  if (request.optimizer != nullptr) AddOptimizer(request, has_params, &layer);
  return layer.Finish();
}

}  // namespace

extern const Format kZarr = {
    .name = "zarr",
    .description = "arrays of zarr as Orbax writes them, for MaxText, Flax and Equinox",
    .lay_out = LayOut,
    .reader = &kZarrReader,
    .has_optimizers = true,
    .globbed = {".zarray", ".zgroup", "zarr.json", "*.ocdbt", "*/.zarray", "*/.zgroup",
                "*/zarr.json"},
};

}  // namespace shardinit
