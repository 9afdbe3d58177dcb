// The folder that Orbax makes with OCDBT off: a zarr array for each tensor, and
// a description of the tree that they are leaves of. TensorStore opens each
// array by itself.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/checked_math.h"
#include "base/json.h"
#include "formats/format.h"
#include "formats/zarr/array.h"

namespace shardinit {
namespace {

// How long the chunks of a dimension are that is cut in `parts`. A shard where
// all are equally long. Else, since all chunks of a dimension must be, nearly
// that; or the dimension stays whole.
int64_t ChunkOf(int64_t extent, int64_t parts) {
  const int64_t shard = CeilDiv(extent, parts);
  for (int64_t chunk = shard; 2 * chunk > shard; --chunk) {
    if (extent % chunk == 0) return chunk;
  }
  return extent;
}

Shape ChunkOf(const Tensor& tensor, const Mesh& mesh) {
  Shape chunk;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const DimensionCut& cut = tensor.partition.cuts[d];
    chunk.push_back(ChunkOf(tensor.shape[d], DivisorOf(cut, mesh)));
  }
  return chunk;
}

std::string Array(const Tensor& tensor, const Shape& chunk) {
  JsonWriter out;
  out.BeginObject().Member("chunks", chunk).Key("compressor").Null();
  out.Member("dimension_separator", ".").Member("dtype", zarr::NameOf(tensor.dtype));
  out.Key("fill_value").Null().Key("filters").Null().Member("order", "C");
  out.Member("shape", tensor.shape).Member("zarr_format", 2).EndObject();
  return out.Finish();
}

// A file for each chunk, named after its place in the grid.
void AddChunks(const Tensor& tensor, const Shape& chunk, std::vector<FileLayout>* files) {
  Shape place(chunk.size(), 0);
  while (true) {
    Box box{Shape(chunk.size()), chunk};
    for (size_t d = 0; d < chunk.size(); ++d) box.offset[d] = place[d] * chunk[d];
    const std::string name = chunk.empty() ? "0" : fmt::format("{}", fmt::join(place, "."));
    files->push_back({fmt::format("{}/{}", tensor.path, name), "", {{&tensor, std::move(box), 0}}});
    size_t d = chunk.size();
    while (d > 0 && ++place[d - 1] == tensor.shape[d - 1] / chunk[d - 1]) place[--d] = 0;
    if (d == 0) return;
  }
}

// _METADATA: the tree. Of value type np.ndarray, leaves can be restored without
// a sharding, as NumPy's arrays, and with one, as jax.Arrays. A path's
// parts are keys of nested dictionaries, and the folder of a leaf is its keys,
// joined by dots: the path again.
std::string Tree(const std::vector<const Tensor*>& tensors, const std::vector<Shape>& chunks) {
  constexpr int kDictionary = 2;
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Key("tree_metadata").BeginObject(JsonWriter::kLines);
  for (size_t t = 0; t < tensors.size(); ++t) {
    std::vector<std::string_view> parts;
    for (std::string_view rest = tensors[t]->path;;) {
      const size_t dot = rest.find('.');
      parts.push_back(rest.substr(0, dot));
      if (dot == rest.npos) break;
      rest.remove_prefix(dot + 1);
    }
    // The key is how Python shows a tuple.
    out.Key(fmt::format("('{}'{})", fmt::join(parts, "', '"), parts.size() == 1 ? "," : ""));
    out.BeginObject().Key("key_metadata").BeginArray();
    for (const std::string_view part : parts) {
      out.BeginObject().Member("key", part).Member("key_type", kDictionary).EndObject();
    }
    out.EndArray().Key("value_metadata").BeginObject().Member("value_type", "np.ndarray");
    out.Member("skip_deserialize", false).Member("write_shape", chunks[t]).EndObject().EndObject();
  }
  out.EndObject().Member("use_ocdbt", false).Member("use_zarr3", false);
  out.Member("store_array_data_equal_to_fill_value", true).Key("custom_metadata").Null();
  out.EndObject();
  return out.Finish();
}

// _CHECKPOINT_METADATA: which of Orbax's handlers reads it.
std::string Handler() {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Member("item_handlers",
             "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler");
  out.Key("metrics").BeginObject().EndObject().Key("performance_metrics").BeginObject().EndObject();
  out.Key("init_timestamp_nsecs").Null().Key("commit_timestamp_nsecs").Null();
  out.Key("custom_metadata").BeginObject().EndObject().EndObject();
  return out.Finish();
}

std::vector<FileLayout> LayOut(const LayoutRequest& request) {
  std::vector<Shape> chunks;
  std::vector<FileLayout> files;
  for (const Tensor* tensor : request.tensors) {
    chunks.push_back(ChunkOf(*tensor, request.plan.graph.mesh));
    files.push_back({tensor->path + "/.zarray", Array(*tensor, chunks.back())});
    AddChunks(*tensor, chunks.back(), &files);
  }
  files.push_back({"_METADATA", Tree(request.tensors, chunks)});
  files.push_back({"_CHECKPOINT_METADATA", Handler()});
  return files;
}

}  // namespace

extern const Format kZarr = {
    .name = "zarr",
    .lay_out = LayOut,
    .reader = &zarr::kReader,
};

}  // namespace shardinit
