// The folder of torch.distributed.checkpoint: a file for each rank that holds anything, with its
// chunks of tensors behind one another, and `.metadata`, which says where each is.
#include "formats/dcp/checkpoint.h"

#include <fmt/format.h>

#include <map>
#include <unordered_map>

#include "base/checked_math.h"
#include "base/error.h"
#include "formats/dcp/item.h"
#include "formats/dcp/pickle.h"
#include "formats/dcp/reader.h"
#include "formats/pieces.h"

namespace shardinit {
namespace dcp {
namespace {

// Whoever loads any part of a chunk reads all of it: small enough for meshes that the export knows
// nothing of. Smaller ones take longer, at half a millisecond each.
constexpr int64_t kMostInChunk = 16 << 20;

// A box in equal parts of that size or less: of the first dimension, or where one index of
// that is too much, of the next. Their number is a power of two where it can be, since FSDP's
// often is: then its shards are chunks, or whole numbers of them.
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
using Slices = std::unordered_map<const Tensor*, std::vector<Slice>>;

// The chunks behind one another, each an archive of its own. Of the slices the file is not yet
// known.
FileLayout LayOutRank(int64_t rank, std::vector<FileBox> boxes, std::vector<Slice>* slices) {
  FileLayout file{.path = fmt::format("__{}_0.distcp", rank), .head = {}};
  // What is between the elements of two chunks is one text.
  std::string* text = &file.head;
  int64_t text_offset = 0, end = 0;
  for (size_t b = 0; b < boxes.size(); ++b) {
    FileBox& box = boxes[b];
    const Item item = MakeItem(box.tensor->dtype, box.box.shape, end);
    file.crcs.push_back({end + item.crc_in_head, b});
    *text += item.head;
    box.offset = end + std::ssize(item.head);
    text_offset = box.offset + BytesOf(box);
    file.crcs.push_back({text_offset + item.crc_in_tail, b});
    file.texts.push_back({text_offset, item.tail});
    text = &file.texts.back().bytes;
    const int64_t start = std::exchange(end, text_offset + std::ssize(item.tail));
    slices->push_back({nullptr, nullptr, start, end - start});
  }
  file.boxes = std::move(boxes);
  return file;
}

// What is missing in a list of chunks stays, in silence, whatever a trainer's memory was.
void CheckWhole(const Tensor& tensor, const std::vector<Slice>& slices) {
  std::vector<const Box*> boxes;
  int64_t elements = 0;
  for (const Slice& slice : slices) {
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      Check(slice.box->offset[d] + slice.box->shape[d] <= tensor.shape[d],
            "a chunk beyond its tensor");
    }
    elements += ElementCount(slice.box->shape);
    boxes.push_back(slice.box);
  }
  Check(elements == tensor.elements() && !FindOverlap(boxes), "chunks that are not their tensor");
}

constexpr char kModule[] = "torch.distributed.checkpoint.metadata";

void WriteSize(const Shape& shape, PickleWriter& out) {
  out.Global("torch", "Size");
  out.BeginTuple();
  out.Ints(shape);
  out.EndTuple();
  out.Call();
}

void WriteTensor(const Tensor& tensor, const std::vector<Slice>& slices, PickleWriter& out) {
  out.New(kModule, "TensorStorageMetadata");
  out.BeginDict();
  out.Text("properties");
  out.New(kModule, "TensorProperties");
  out.BeginTuple();
  out.Global("torch", NameOf(tensor.dtype));
  out.Global("torch.serialization", "_get_layout");
  out.BeginTuple();
  out.Text("torch.strided");
  out.EndTuple();
  out.Call();
  out.False();  // requires_grad
  out.Global(kModule, "_MEM_FORMAT_ENCODING");
  out.Ints({0});  // torch.contiguous_format
  out.Call();
  out.False();  // pin_memory
  out.EndTuple();
  out.SetState();
  out.Text("size");
  WriteSize(tensor.shape, out);
  out.Text("chunks");
  out.BeginList();
  for (const Slice& slice : slices) {
    out.New(kModule, "ChunkStorageMetadata");
    out.BeginDict();
    out.Text("offsets");
    WriteSize(slice.box->offset, out);
    out.Text("sizes");
    WriteSize(slice.box->shape, out);
    out.EndDict();
    out.SetState();
  }
  out.EndList();
  out.EndDict();
  out.SetState();
}

// Of chunk `index` of a tensor; null: of an object.
void WriteIndex(std::string_view name, int64_t index, const Box* chunk, PickleWriter& out) {
  out.New(kModule, "MetadataIndex");
  out.BeginDict();
  out.Text("fqn");
  out.Text(name);
  out.Text("index");
  if (chunk == nullptr) {
    out.None();
  } else {
    out.Int(index);
    out.Text("offset");
    WriteSize(chunk->offset, out);
  }
  out.EndDict();
  out.SetState();
}

void WritePlace(const Slice& slice, PickleWriter& out) {
  out.New("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  out.BeginDict();
  out.Text("relative_path");
  out.Text(*slice.file);
  out.Text("offset");
  out.Int(slice.offset);
  out.Text("length");
  out.Int(slice.length);
  out.EndDict();
  out.SetState();
}

std::string WriteMetadata(const std::vector<const Tensor*>& tensors, const Slices& slices,
                          const Objects& objects, const Slice& object) {
  PickleWriter out;
  out.New(kModule, "Metadata");
  out.BeginDict();
  out.Text("state_dict_metadata");
  out.BeginDict();
  for (const Tensor* tensor : tensors) {
    out.Text(tensor->path);
    WriteTensor(*tensor, slices.at(tensor), out);
  }
  for (const std::string& name : objects.names) {
    out.Text(name);
    out.New(kModule, "BytesStorageMetadata");
  }
  out.EndDict();
  // Of each name its keys in nested dictionaries: one, as of a module's state dict.
  out.Text("planner_data");
  out.BeginDict();
  const auto write_keys = [&](const std::string& name) {
    out.Text(name);
    out.BeginTuple();
    out.Text(name);
    out.EndTuple();
  };
  for (const Tensor* tensor : tensors) write_keys(tensor->path);
  for (const std::string& name : objects.names) write_keys(name);
  out.EndDict();
  out.Text("storage_data");
  out.BeginDict();
  for (const Tensor* tensor : tensors) {
    const std::vector<Slice>& chunks = slices.at(tensor);
    for (size_t i = 0; i < chunks.size(); ++i) {
      WriteIndex(tensor->path, static_cast<int64_t>(i), chunks[i].box, out);
      WritePlace(chunks[i], out);
    }
  }
  for (const std::string& name : objects.names) {
    WriteIndex(name, 0, nullptr, out);
    WritePlace(object, out);
  }
  out.EndDict();
  out.Text("storage_meta");
  out.None();
  out.Text("version");
  out.Text("1.0.0");
  out.EndDict();
  out.SetState();
  return out.Finish();
}

}  // namespace

std::vector<FileLayout> LayOutCheckpoint(const LayoutRequest& request, const Objects& objects) {
  std::map<int64_t, std::vector<FileBox>> ranks;
  for (const Tensor* tensor : request.tensors) {
    request.plan.ShardingOf(*tensor).ForEachBox([&](int64_t rank, size_t, const Box& box) {
      for (Box& chunk : CutIntoChunks(box, InfoOf(tensor->dtype).bytes)) {
        ranks[rank].push_back({tensor, std::move(chunk), 0});
      }
    });
  }
  std::vector<FileLayout> files;
  std::vector<std::vector<Slice>> found;  // Of each file.
  for (auto& [rank, boxes] : ranks) {
    found.emplace_back();
    files.push_back(LayOutRank(rank, std::move(boxes), &found.back()));
  }
  Slices slices;
  for (size_t f = 0; f < files.size(); ++f) {
    for (size_t b = 0; b < found[f].size(); ++b) {
      const FileBox& box = files[f].boxes[b];
      const Slice& slice = found[f][b];
      slices[box.tensor].push_back({&box.box, &files[f].path, slice.offset, slice.length});
    }
  }
  for (const Tensor* tensor : request.tensors) CheckWhole(*tensor, slices.at(tensor));
  FileLayout archive{"__0_1.distcp", ""};
  if (!objects.names.empty()) archive.head = MakeArchive(objects.pickle);
  std::string metadata = WriteMetadata(request.tensors, slices, objects,
                                       {nullptr, &archive.path, 0, std::ssize(archive.head)});
  if (!objects.names.empty()) files.push_back(std::move(archive));
  files.push_back({".metadata", std::move(metadata)});
  return files;
}

}  // namespace dcp

extern const Format kDcp = {
    .name = "dcp",
    .lay_out = [](const LayoutRequest& request) { return dcp::LayOutCheckpoint(request, {}); },
    .reader = &dcp::kReader,
};

}  // namespace shardinit
