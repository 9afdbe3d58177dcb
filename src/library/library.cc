// Implements the C functions of shardinit.h. C++ exceptions do not leave this file.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/arithmetic.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/listing.h"
#include "generate/fill.h"
#include "generate/on_cuda.h"
#include "library/shardinit.h"
#include "plan/load.h"
#include "plan/read.h"
#include "rng/stream.h"

namespace shardinit {
namespace {

static_assert(SHARDINIT_ERROR_DAMAGE == static_cast<int>(ExitCode::kDifferent));
static_assert(SHARDINIT_ERROR_REFUSED == static_cast<int>(ExitCode::kRefused));
static_assert(SHARDINIT_ERROR_USAGE == static_cast<int>(ExitCode::kUsage));
static_assert(SHARDINIT_ERROR_WORLD == static_cast<int>(ExitCode::kWorld));
static_assert(SHARDINIT_ERROR_BUG == static_cast<int>(ExitCode::kBug));

constexpr int kMostThreads = 4096;

// Copies a text for the caller; returns null if memory is exhausted.
char* Copy(std::string_view text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

shardinit_status Fail(ExitCode code, std::string_view text, char** message) {
  if (message != nullptr) *message = Copy(text);
  return static_cast<shardinit_status>(code);
}

// Catches every exception, as main() does for the program.
template <typename Body>
shardinit_status Guarded(char** message, const Body& body) noexcept {
  if (message != nullptr) *message = nullptr;
  try {
    try {
      const DefaultArithmetic arithmetic;
      body();
      return SHARDINIT_OK;
    } catch (const InvalidSpec& e) {
      return Fail(ExitCode::kUsage, Render(e.diagnostics()), message);
    } catch (const Error& e) {
      return Fail(e.code(), RenderError(e.what(), e.hint()), message);
    } catch (const std::bad_alloc&) {
      return Fail(ExitCode::kWorld, "shardinit: error: out of memory\n", message);
    } catch (const std::exception& e) {
      return Fail(ExitCode::kBug,
                  RenderError(fmt::format("this is a bug in shardinit: {}", e.what()),
                              "please report it with the spec and the command or call"),
                  message);
    }
  } catch (...) {  // Memory is exhausted.
    return SHARDINIT_ERROR_WORLD;
  }
}

// The first header's struct ended with `layout`.
constexpr size_t kFirstSourceSize =
    offsetof(shardinit_source, layout) + sizeof(shardinit_source::layout);

// Copies the caller's struct, which may come from an older or a newer header.
shardinit_source CopySource(const shardinit_source* given) {
  if (given == nullptr) throw Usage("shardinit_open: `source` is NULL");
  shardinit_source source = {};
  const size_t size = given->struct_size;
  if (size < kFirstSourceSize) {
    throw Usage(fmt::format("shardinit_open: `struct_size` is {}, not sizeof(shardinit_source), {}",
                            size, sizeof source));
  }
  std::memcpy(&source, given, std::min(size, sizeof source));
  const auto* bytes = reinterpret_cast<const char*>(given);
  if (size > sizeof source &&
      std::any_of(bytes + sizeof source, bytes + size, [](char c) { return c != 0; })) {
    throw Usage("shardinit_open: `source` has members that this library does not know",
                "install a libshardinit as new as the header of the program");
  }
  return source;
}

PlanRequest RequestOf(const shardinit_source& source) {
  PlanRequest request;
  request.warnings = Warnings::kReport;
  SpecRequest& spec = request.spec;
  if (source.text != nullptr) {
    spec.path = source.path == nullptr ? "<text>" : source.path;
    spec.text = std::string(source.text, source.text_size);
  } else if (source.path == nullptr) {
    throw Usage("shardinit_open: neither `path` nor `text` is given");
  } else {
    spec.path = source.path;
    if (spec.path == "-") spec.path = "./-";  // Standard input belongs to the host.
  }
  for (size_t i = 0; i < source.set_count; ++i) {
    if (source.sets == nullptr || source.sets[i] == nullptr) {
      throw Usage(fmt::format("shardinit_open: `sets` has no string {}", i));
    }
    spec.sets.emplace_back(source.sets[i]);
  }
  if (source.mesh != nullptr) spec.mesh = source.mesh;
  if (source.layout != nullptr) request.layout = source.layout;
  return request;
}

// Calls `read` with the text of a file and its name for messages.
template <typename Read>
auto ReadGiven(const shardinit_source& source, const Read& read) {
  if (source.text == nullptr) throw Usage("shardinit_open: `is_plan` needs a `text`");
  return read(std::string_view(source.text, source.text_size),
              std::string(source.path == nullptr ? "plan.json" : source.path));
}

Plan PlanOf(std::string_view text, const std::string& path) {
  RequireKnownVersion(text, path);
  return ReadPlan(text, path);
}

// Returns the URL by which the library reads the caller's files.
std::string AddFiles(const shardinit_files& files) {
  if (files.read_range == nullptr) throw Usage("shardinit_open: `read_range` is NULL");
  if (files.count > 0 && (files.names == nullptr || files.sizes == nullptr)) {
    throw Usage("shardinit_open: `names` or `sizes` is NULL");
  }
  BucketTree::Objects objects;
  for (size_t i = 0; i < files.count; ++i) objects[files.names[i]] = {.size = files.sizes[i]};
  if (objects.contains(kPlanName)) {
    throw Usage(fmt::format("a checkpoint, which has a {}, must be on disk", kPlanName));
  }
  const auto read = [read = files.read_range, context = files.context](
                        const std::string& name, const ObjectInfo&, int64_t offset, int64_t bytes) {
    std::string out(static_cast<size_t>(bytes), '\0');
    if (read(context, name.c_str(), offset, bytes, out.data()) == 0) return out;
    throw Error(ExitCode::kWorld, fmt::format("cannot read `{}`", name));
  };
  return BucketTree::Add(std::move(objects), read);
}

// A folder of tensors, on disk or in files that the caller reads.
class OpenFolder {
 public:
  explicit OpenFolder(const shardinit_source& source)
      : path_(source.path == nullptr ? "" : source.path) {
    if (path_.empty()) throw Usage("shardinit_open: `is_folder` needs a `path`");
    if (source.files != nullptr) url_ = AddFiles(*source.files);
    try {
      Named([&] { folder_.emplace(url_.empty() ? path_ : url_); });
    } catch (...) {
      Close();
      throw;
    }
  }
  OpenFolder(const OpenFolder&) = delete;
  ~OpenFolder() { Close(); }

  const Plan& plan() const { return folder_->plan(); }

  std::string Warnings() const {
    std::string text;
    const auto add = [&](const std::string& warning) {
      text += fmt::format("shardinit: `{}`: {}\n", Escape(path_), Escape(warning));
    };
    for (const std::string& warning : folder_->warnings()) add(warning);
    for (const auto& [name, why] : folder_->unread()) {
      add(fmt::format("{} {}: it is not read", Quote(name), why));
    }
    return text;
  }

  void Read(const Tensor& tensor, const Box& box, void* out) const {
    Named([&] {
      const std::vector<FilePiece>& pieces = folder_->PiecesOf(tensor);
      try {
        ReadPieces(pieces, InfoOf(tensor.dtype()).bytes, box, 0, ElementCount(box.shape), out);
        ForgetKeptParts();
      } catch (const Error&) {
        ForgetKeptParts();
        RequireUnchanged(pieces, box);
        throw;
      }
      RequireUnchanged(pieces, box);
    });
  }

 private:
  // Errors name the folder as the caller does.
  template <typename Body>
  void Named(const Body& body) const {
    try {
      body();
    } catch (const Error& e) {
      throw Error(e.code(), Shown(e.what()), Shown(e.hint()));
    }
  }
  std::string Shown(std::string text) const {
    if (url_.empty()) return text;
    for (size_t at = 0; (at = text.find(url_, at)) != text.npos; at += path_.size()) {
      text.replace(at, url_.size(), path_);
    }
    return text;
  }

  void RequireUnchanged(const std::vector<FilePiece>& pieces, const Box& box) const {
    for (const FilePiece& piece : pieces) {
      if (!Overlap(piece.box, box)) continue;
      try {
        folder_->RequireUnchanged(piece);
      } catch (const Error& e) {
        throw Error(ExitCode::kDifferent, e.what(), "open the folder again");
      }
    }
  }

  void Close() {
    folder_.reset();
    CloseFrames();
    if (!url_.empty()) BucketTree::Remove(url_);
  }

  const std::string path_;
  std::string url_;  // empty: the folder is on disk
  std::optional<TensorFolder> folder_;
};

std::string PartitionInText(const std::vector<int>& axes, const Mesh& mesh) {
  std::string text;
  for (const int axis : axes) {
    if (!text.empty()) text += ',';
    text += mesh.axes[axis];
  }
  return text;
}

std::vector<const char*> PointersTo(const std::vector<std::string>& strings) {
  std::vector<const char*> pointers;
  for (const std::string& s : strings) pointers.push_back(s.c_str());
  return pointers;
}

}  // namespace
}  // namespace shardinit

using namespace shardinit;  // NOLINT: the rest is C.

// The plan, and its view for C: pointers into the plan and into `strings`.
struct shardinit_spec {
  std::optional<OpenFolder> folder;  // has the plan, if there is one
  std::optional<Listing> listing;    // the same
  Plan own_plan;
  const Plan& plan;
  std::string warnings;
  std::vector<const char*> axes;
  std::vector<std::vector<std::string>> strings;     // each tensor's partition
  std::vector<std::vector<const char*>> partitions;  // the same for C
  std::vector<shardinit_tensor> tensors;
  std::unordered_map<std::string_view, int64_t> numbers;
  std::string plan_sha256;
  std::vector<const char*> file_names;
  std::vector<int64_t> file_sizes;
  mutable std::mutex places;  // guards the places in the listing
  shardinit_info info;

  explicit shardinit_spec(const shardinit_source& source)
      : plan(source.is_folder     ? folder.emplace(source).plan()
             : source.is_manifest ? listing.emplace(ReadGiven(source, ReadManifest)).plan
             : source.is_record   ? listing.emplace(ReadGiven(source, ListExport)).plan
                                  : own_plan) {
    if (folder) {
      warnings = folder->Warnings();
    } else if (listing) {
      ListFiles();
    } else if (source.is_plan) {
      own_plan = ReadGiven(source, PlanOf);
    } else {
      Diagnostics diagnostics;
      own_plan = LoadPlan(RequestOf(source), diagnostics);
      warnings = Render(diagnostics.all());
    }
    const InitGraph& graph = plan.graph;
    axes = PointersTo(graph.mesh.axes);
    const size_t count = graph.tensors.size();
    strings.reserve(count);
    partitions.reserve(count);
    for (const Tensor& tensor : graph.tensors) {
      std::vector<std::string>& dimensions = strings.emplace_back();
      for (const DimensionPartition& by : tensor.partition().dimensions) {
        dimensions.push_back(PartitionInText(by.axes, graph.mesh));
      }
      partitions.push_back(PointersTo(dimensions));
      const DTypeInfo& dtype = InfoOf(tensor.dtype());
      numbers[tensor.path()] = static_cast<int64_t>(tensors.size());
      tensors.push_back({.path = tensor.path().data(),
                         .dtype = dtype.name.data(),
                         .element_bytes = dtype.bytes,
                         .dimensions = static_cast<int32_t>(tensor.shape().size()),
                         .shape = tensor.shape().data(),
                         .elements = tensor.elements(),
                         .bytes = tensor.bytes(),
                         .partition = partitions.back().data(),
                         .extended = tensor.partition().IsExtended()});
    }
    info = {.name = graph.name.c_str(),
            .engine = graph.engine.c_str(),
            .seed = graph.seed,
            .parameters = plan.parameters,
            .bytes = plan.bytes,
            .tensor_count = static_cast<int64_t>(count),
            .mesh_dimensions = static_cast<int32_t>(axes.size()),
            .mesh_axes = axes.data(),
            .mesh_shape = graph.mesh.shape.data(),
            .warnings = warnings.c_str(),
            .plan_sha256 = listing ? plan_sha256.c_str() : nullptr,
            .replicas = listing ? NameOf(graph.replicas).data() : nullptr,
            .format = listing ? listing->format.c_str() : nullptr,
            .file_count = std::ssize(file_names),
            .file_names = file_names.data(),
            .file_sizes = file_sizes.data(),
            .device_ids = listing ? listing->device_ids.data() : nullptr,
            .device_slices = listing ? listing->device_slices.data() : nullptr};
  }
  void ListFiles() {
    plan_sha256 = ToHex(listing->plan_sha256);
    for (const ListedFile& file : listing->files) {
      file_names.push_back(file.name.c_str());
      file_sizes.push_back(file.size);
    }
  }
  shardinit_spec(const shardinit_spec&) = delete;

  const Tensor& At(int64_t index) const {
    if (listing) throw Usage("a manifest or record only lists boxes: open the folder or its plan");
    if (index < 0 || index >= info.tensor_count) {
      throw Usage(
          fmt::format("tensor {} does not exist: the spec has {}", index, info.tensor_count));
    }
    return plan.graph.tensors[index];
  }
};

namespace shardinit {
namespace {

Box BoxOf(const Tensor& tensor, const int64_t* offset, const int64_t* shape) {
  if (offset == nullptr && shape == nullptr) return WholeOf(tensor.shape());
  const size_t dimensions = tensor.shape().size();
  Box box;
  if (dimensions == 0) return box;
  if (offset == nullptr || shape == nullptr) throw Usage("one of `offset` and `shape` is NULL");
  box.offset.assign(offset, offset + dimensions);
  box.shape.assign(shape, shape + dimensions);
  for (size_t d = 0; d < dimensions; ++d) {
    const int64_t extent = tensor.shape()[d];
    if (offset[d] < 0 || shape[d] < 0 || shape[d] > extent || offset[d] > extent - shape[d]) {
      throw Usage(
          fmt::format("{} elements from {} on are outside dimension {} of `{}`, which has {}",
                      shape[d], offset[d], d, tensor.path(), extent));
    }
  }
  return box;
}

// The caller's memory for a part of a tensor.
struct PartMemory {
  PartMemory(const Tensor& whole, const int64_t* offset, const int64_t* shape, void* to,
             size_t out_size)
      : tensor(whole), box(BoxOf(whole, offset, shape)), out(to) {
    const int size = InfoOf(tensor.dtype()).bytes;
    const auto bytes = static_cast<uint64_t>(ElementCount(box.shape)) * size;
    if (bytes != out_size) {
      throw Usage(fmt::format("this part of `{}` has {} bytes, and `out_size` is {}", tensor.path(),
                              bytes, out_size));
    }
    if (bytes == 0) return;
    if (out == nullptr) throw Usage("`out` is NULL");
    if (reinterpret_cast<uintptr_t>(out) % size != 0) {
      throw Usage(fmt::format("`out` is not aligned to the {} bytes of an element of `{}`", size,
                              tensor.path()));
    }
  }

  const Tensor& tensor;
  const Box box;
  void* const out;
};

void Fill(const shardinit_spec& spec, const PartMemory& part, int threads) {
  if (ElementCount(part.box.shape) == 0) return;
  if (threads < 0 || threads > kMostThreads) {
    throw Usage(fmt::format("`threads` is {}: use a number from 1 to {}, or 0 for all cores",
                            threads, kMostThreads));
  }
  if (spec.folder) return spec.folder->Read(part.tensor, part.box, part.out);
  FillBox(part.tensor, part.box, threads > 0 ? threads : AvailableCores(), part.out);
}

bool FillCuda(const shardinit_spec& spec, const PartMemory& part, void* stream) {
  if (spec.folder) return false;
  return ElementCount(part.box.shape) == 0 ||
         FillBoxOnCuda(part.tensor, part.box, {reinterpret_cast<uintptr_t>(part.out), stream});
}

}  // namespace
}  // namespace shardinit

shardinit_status shardinit_open(const shardinit_source* source, shardinit_spec** spec,
                                char** message) {
  return Guarded(message, [&] {
    if (spec == nullptr) throw Usage("shardinit_open: `spec` is NULL");
    *spec = new shardinit_spec(CopySource(source));
  });
}

void shardinit_close(shardinit_spec* spec) { delete spec; }

const shardinit_info* shardinit_describe(const shardinit_spec* spec) { return &spec->info; }

const shardinit_tensor* shardinit_tensor_at(const shardinit_spec* spec, int64_t index) {
  return index < 0 || index >= spec->info.tensor_count ? nullptr : &spec->tensors[index];
}

int64_t shardinit_find(const shardinit_spec* spec, const char* path) {
  const auto found = spec->numbers.find(path);
  return found == spec->numbers.end() ? -1 : found->second;
}

shardinit_status shardinit_fill(const shardinit_spec* spec, int64_t index, const int64_t* offset,
                                const int64_t* shape, void* out, size_t out_size, int32_t threads,
                                char** message) {
  return Guarded(message, [&] {
    Fill(*spec, PartMemory(spec->At(index), offset, shape, out, out_size), threads);
  });
}

shardinit_status shardinit_fill_cuda(const shardinit_spec* spec, int64_t index,
                                     const int64_t* offset, const int64_t* shape, void* out,
                                     size_t out_size, void* stream, int32_t* made, char** message) {
  return Guarded(message, [&] {
    if (made == nullptr) throw Usage("`made` is NULL");
    *made =
        FillCuda(*spec, PartMemory(spec->At(index), offset, shape, out, out_size), stream) ? 1 : 0;
  });
}

shardinit_status shardinit_boxes(const shardinit_spec* spec, int64_t index, int64_t rank,
                                 int64_t* offsets, int64_t* shapes, int64_t capacity,
                                 int64_t* count, char** message) {
  return Guarded(message, [&] {
    const Tensor& tensor = spec->At(index);
    if (rank < 0 || rank >= spec->plan.world_size()) {
      throw Usage(
          fmt::format("rank {} does not exist: the mesh has {}", rank, spec->plan.world_size()));
    }
    if (count == nullptr) throw Usage("`count` is NULL");
    if (capacity > 0 && (offsets == nullptr || shapes == nullptr)) {
      throw Usage("`offsets` or `shapes` is NULL");
    }
    const std::vector<Box> boxes = spec->plan.ShardingOf(tensor).BoxesOn(rank);
    *count = std::ssize(boxes);
    for (int64_t i = 0; i < std::min(capacity, *count); ++i) {
      const Box& box = boxes[static_cast<size_t>(i)];
      offsets = std::copy(box.offset.begin(), box.offset.end(), offsets);
      shapes = std::copy(box.shape.begin(), box.shape.end(), shapes);
    }
  });
}

int32_t shardinit_listed_at(const shardinit_spec* spec, int64_t index, int64_t number,
                            shardinit_listed* box) {
  const auto at = [](const auto& list, int64_t i) { return i >= 0 && i < std::ssize(list); };
  if (!spec->listing || !at(spec->listing->boxes, index)) return 0;
  const std::vector<ListedBox>& boxes = spec->listing->boxes[index];
  if (!at(boxes, number)) return 0;
  const std::lock_guard lock(spec->places);
  const ListedBox& from = boxes[number];
  *box = {from.box.offset.data(), from.box.shape.data(), from.file, from.place, from.sha256.data()};
  return 1;
}

shardinit_status shardinit_add_receipt(shardinit_spec* spec, int64_t rank, const char* text,
                                       size_t text_size, char** message) {
  return Guarded(message, [&] {
    if (!spec->listing || !spec->listing->format.empty() || rank < 0 ||
        rank >= spec->plan.world_size() || text == nullptr) {
      throw Usage(fmt::format("there is no rank {}, or `text` is NULL", rank));
    }
    const std::lock_guard lock(spec->places);
    AddReceipt(rank, std::string_view(text, text_size), &*spec->listing);
  });
}

void shardinit_free(char* message) { std::free(message); }

const char* shardinit_version(void) { return SHARDINIT_VERSION; }
int32_t shardinit_abi_version(void) { return SHARDINIT_ABI_VERSION; }
int32_t shardinit_contract_version(void) { return kContractVersion; }
