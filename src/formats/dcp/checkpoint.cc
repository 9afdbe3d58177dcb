// Lays out the folder of torch.distributed.checkpoint. Each rank that holds anything has a file
// with its chunks of tensors, one after another. `.metadata` lists where each chunk is.
#include "formats/dcp/checkpoint.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <unordered_map>

#include "base/checked_math.h"
#include "base/error.h"
#include "formats/dcp/pickle.h"
#include "formats/foreign_names.h"
#include "formats/pieces.h"

namespace shardinit {
namespace dcp {
namespace {

// Loading any part of a chunk reads all of it, so chunks must be small enough for meshes that are
// unknown at export. Smaller chunks would take longer, at half a millisecond each.
constexpr int64_t kMostInChunk = 16 << 20;

// Divides a box into equal chunks of at most kMostInChunk bytes. It divides the first dimension, or
// the next one if one index of the first is too large. The number of chunks is a power of two if
// possible, because FSDP's number of shards often is. Then each shard is one or more whole chunks.
std::vector<Box> CutIntoChunks(const Box& box, int64_t element_bytes) {
  if (box.shape.empty()) return {box};
  size_t cut = 0;
  int64_t row = ElementCount(box.shape) * element_bytes / box.shape[0];
  for (; row > kMostInChunk && cut + 1 < box.shape.size(); row /= box.shape[cut]) ++cut;
  int64_t parts = 1;
  while (CeilDiv(box.shape[cut], parts) * row > kMostInChunk && parts < box.shape[cut]) parts *= 2;
  const int64_t length = CeilDiv(box.shape[cut], parts);
  std::vector<Box> chunks;
  for (Shape place(cut + 1, 0);;) {
    Box chunk = box;
    for (size_t d = 0; d <= cut; ++d) {
      chunk.offset[d] += place[d];
      chunk.shape[d] = d < cut ? 1 : std::min(length, box.shape[d] - place[d]);
    }
    chunks.push_back(std::move(chunk));
    place[cut] += length;
    size_t d = cut;
    for (; d > 0 && place[d] >= box.shape[d]; place[d--] = 0) ++place[d - 1];
    if (place[0] >= box.shape[0]) return chunks;
  }
}

// A chunk in its file.
struct Slice {
  const Box* box;
  const std::string* file;
  int64_t offset, length;
};

// An entry of the metadata.
struct Entry {
  std::string name;
  Keys keys;
  std::optional<std::pair<DType, Shape>> tensor;  // nullopt for an object
  std::vector<Slice> slices = {};
};

// Adds the bytes between the elements of chunks, and the places of CRCs.
void PutTexts(FileLayout* file) {
  // The bytes between the elements of two chunks are one text.
  std::string* text = &file->head;
  int64_t end = 0;
  for (size_t b = 0; b < file->boxes.size(); ++b) {
    const FileBox& box = file->boxes[b];
    const Item item = MakeItem(box.tensor->dtype(), box.box.shape, end);
    Check(box.offset == end + std::ssize(item.head), "a chunk that is not where its file has it");
    file->crcs.push_back({end + item.crc_in_head, b});
    *text += item.head;
    const int64_t text_offset = box.offset + BytesOf(box);
    file->crcs.push_back({text_offset + item.crc_in_tail, b});
    file->texts.push_back({text_offset, item.tail});
    text = &file->texts.back().bytes;
    end = text_offset + std::ssize(item.tail);
  }
}

// Lays out the chunks of each rank one after another. Each chunk is a separate archive.
std::vector<FileLayout> LayOutRanks(const LayoutRequest& request, ItemSizes* sizes) {
  int64_t all = 0;
  for (const Tensor* tensor : request.tensors) all += request.plan.ShardingOf(*tensor).CountBoxes();
  RequireFewBoxes(all);
  std::map<int64_t, std::vector<FileBox>> ranks;
  for (const Tensor* tensor : request.tensors) {
    request.plan.ShardingOf(*tensor).ForEachBox([&](int64_t rank, size_t, const Box& box) {
      for (Box& chunk : CutIntoChunks(box, InfoOf(tensor->dtype()).bytes)) {
        ranks[rank].push_back({tensor, std::move(chunk), 0});
      }
    });
  }
  std::vector<FileLayout> files;
  for (auto& [rank, boxes] : ranks) {
    FileLayout file{.path = fmt::format("__{}_0.distcp", rank), .head = {}, .complete = PutTexts};
    for (FileBox& box : boxes) {
      box.offset = file.end + sizes->HeadOf(box.tensor->dtype(), box.box.shape, file.end);
      file.end = box.offset + BytesOf(box) + sizes->tail();
    }
    file.boxes = std::move(boxes);
    files.push_back(std::move(file));
  }
  return files;
}

// Checks that the chunks cover the tensor: in a gap, a trainer would silently keep whatever its
// memory held.
void CheckWhole(const Shape& shape, const std::vector<Slice>& slices) {
  std::vector<const Box*> boxes;
  int64_t elements = 0;
  for (const Slice& slice : slices) {
    for (size_t d = 0; d < shape.size(); ++d) {
      Check(slice.box->offset[d] + slice.box->shape[d] <= shape[d], "a chunk beyond its tensor");
    }
    elements += ElementCount(slice.box->shape);
    boxes.push_back(slice.box);
  }
  Check(elements == ElementCount(shape) && !FindOverlap(boxes), "chunks that are not their tensor");
}

constexpr char kModule[] = "torch.distributed.checkpoint.metadata";

void WriteSize(const Shape& shape, PickleWriter& out) {
  out.Global("torch", "Size");
  out.BeginTuple();
  out.Ints(shape);
  out.EndTuple();
  out.Call();
}

void WriteKeys(const Keys& keys, PickleWriter& out) {
  out.BeginTuple();
  for (const auto& key : keys) {
    const auto* const text = std::get_if<std::string>(&key);
    text != nullptr ? out.Text(*text) : out.Int(std::get<int64_t>(key));
  }
  out.EndTuple();
}

void WriteProperties(DType dtype, PickleWriter& out) {
  out.New(kModule, "TensorProperties");
  out.BeginTuple();
  out.Global("torch", ForeignNamesOf(dtype).torch);
  out.Global("torch.serialization", "_get_layout");
  out.BeginTuple();
  out.Text("torch.strided");
  out.EndTuple();
  out.Call();
  out.Bool(false);  // requires_grad
  out.Global(kModule, "_MEM_FORMAT_ENCODING");
  out.Ints({0});  // torch.contiguous_format
  out.Call();
  out.Bool(false);  // pin_memory
  out.EndTuple();
  out.SetState();
}

void WriteTensor(DType dtype, const Shape& shape, const std::vector<Slice>& slices,
                 PickleWriter& out) {
  out.Object(kModule, "TensorStorageMetadata", [&] {
    WriteProperties(dtype, out.Key("properties"));
    WriteSize(shape, out.Key("size"));
    out.Key("chunks").BeginList();
    for (const Slice& slice : slices) {
      out.Object(kModule, "ChunkStorageMetadata", [&] {
        WriteSize(slice.box->offset, out.Key("offsets"));
        WriteSize(slice.box->shape, out.Key("sizes"));
      });
    }
    out.EndList();
  });
}

// Writes the index of chunk `index` of a tensor, or of an object if `chunk` is null.
void WriteIndex(std::string_view name, int64_t index, const Box* chunk, PickleWriter& out) {
  out.Object(kModule, "MetadataIndex", [&] {
    out.Key("fqn").Text(name);
    out.Key("index");
    if (chunk == nullptr) return out.None();
    out.Int(index);
    WriteSize(chunk->offset, out.Key("offset"));
  });
}

void WritePlace(const Slice& slice, PickleWriter& out) {
  out.Object("torch.distributed.checkpoint.filesystem", "_StorageInfo", [&] {
    out.Key("relative_path").Text(*slice.file);
    out.Key("offset").Int(slice.offset);
    out.Key("length").Int(slice.length);
  });
}

std::string WriteMetadata(const std::vector<Entry>& entries) {
  PickleWriter out;
  out.Object(kModule, "Metadata", [&] {
    out.Key("state_dict_metadata").Dict([&] {
      for (const Entry& entry : entries) {
        out.Text(entry.name);
        entry.tensor ? WriteTensor(entry.tensor->first, entry.tensor->second, entry.slices, out)
                     : out.New(kModule, "BytesStorageMetadata");
      }
    });
    out.Key("planner_data").Dict([&] {
      for (const Entry& entry : entries) WriteKeys(entry.keys, out.Key(entry.name));
    });
    out.Key("storage_data").Dict([&] {
      for (const Entry& entry : entries) {
        for (size_t i = 0; i < entry.slices.size(); ++i) {
          WriteIndex(entry.name, static_cast<int64_t>(i), entry.slices[i].box, out);
          WritePlace(entry.slices[i], out);
        }
      }
    });
    out.Key("storage_meta").None();
    out.Key("version").Text("1.0.0");
  });
  return out.Finish();
}

std::string Joined(const Keys& keys) {
  std::string name;
  for (const auto& key : keys) {
    const auto* const text = std::get_if<std::string>(&key);
    if (!name.empty()) name += '.';
    name += text != nullptr ? *text : std::to_string(std::get<int64_t>(key));
  }
  return name;
}

constexpr char kArchives[] = "__0_1.distcp";

// Adds the entries of the archives, which are stored one after another in `file`. `wholes` holds
// their boxes.
void AddExtras(const Extras& extras, const std::string* file, std::deque<Box>* wholes,
               std::vector<Entry>* entries) {
  std::vector<int64_t> offsets = {0};
  for (const std::string& item : extras.items) offsets.push_back(offsets.back() + std::ssize(item));
  for (const Extras::Entry& extra : extras.entries) {
    const Box* const box =
        extra.tensor ? &wholes->emplace_back(WholeOf(extra.tensor->second)) : nullptr;
    const Slice slice = {box, file, offsets[extra.item], std::ssize(extras.items[extra.item])};
    entries->push_back({Joined(extra.keys), extra.keys, extra.tensor, {slice}});
  }
}

std::string MetadataOf(const LayoutRequest& request, const Keys& prefix, const Extras& extras) {
  std::vector<Entry> entries;
  std::unordered_map<const Tensor*, size_t> numbers;
  for (const Tensor* tensor : request.tensors) {
    Keys keys = prefix;
    keys.emplace_back(std::string(tensor->path()));
    numbers.emplace(tensor, entries.size());
    std::string name = Joined(keys);
    entries.push_back(
        {std::move(name), std::move(keys), std::pair(tensor->dtype(), tensor->shape())});
  }
  ItemSizes sizes;
  const std::vector<FileLayout> files = LayOutRanks(request, &sizes);
  for (const FileLayout& file : files) {
    int64_t start = 0;
    for (const FileBox& box : file.boxes) {
      const int64_t end = box.offset + BytesOf(box) + sizes.tail();
      entries[numbers.at(box.tensor)].slices.push_back({&box.box, &file.path, start, end - start});
      start = end;
    }
  }
  const std::string archives = kArchives;
  std::deque<Box> wholes;
  AddExtras(extras, &archives, &wholes, &entries);
  for (const Entry& entry : entries) {
    if (entry.tensor) CheckWhole(entry.tensor->second, entry.slices);
  }
  return WriteMetadata(entries);
}

}  // namespace

std::vector<FileLayout> LayOutCheckpoint(const LayoutRequest& request, const Keys& prefix,
                                         const Extras& extras) {
  ItemSizes sizes;
  std::vector<FileLayout> files = LayOutRanks(request, &sizes);
  FileLayout archives{kArchives, ""};
  for (const std::string& item : extras.items) archives.head += item;
  if (!extras.items.empty()) files.push_back(std::move(archives));
  files.push_back({.path = ".metadata",
                   .head = {},
                   .complete = [request, prefix, entries = extras](FileLayout* file) {
                     file->head = MetadataOf(request, prefix, entries);
                   }});
  return files;
}

}  // namespace dcp

extern const Format kDcp = {
    .name = "dcp",
    .description = "PyTorch Distributed Checkpoint, for torchtitan, FSDP2, Lightning and others",
    .lay_out =
        [](const LayoutRequest& request) {
          if (request.optimizer == nullptr) return dcp::LayOutCheckpoint(request, {}, {});
          return dcp::LayOutCheckpoint(request, {"model"}, dcp::StateOf(request));
        },
    .reader = &kDcpReader,
    .has_optimizers = true,
    .globbed = {"*.distcp"},
};

}  // namespace shardinit
