// Defines output formats: a format's files, where each box is in them, and how to read such a
// folder back. export/ computes the values, writes and compares them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/diagnostics.h"
#include "formats/findings.h"
#include "formats/foreign_names.h"
#include "formats/parts.h"
#include "formats/pieces.h"
#include "graph/graph.h"
#include "place/file_outline.h"
#include "plan/plan.h"
#include "spec/optimizer.h"

namespace shardinit {

struct OptimizerState {
  OptimizerSpec spec;
  // The index of each tensor's parameter group in the spec. Other tensors have no state.
  std::unordered_map<const Tensor*, size_t> group_of;

  bool has_hyperparameters() const { return !spec.groups[0].hyperparameters.empty(); }
};

// Assigns a graph's tensors to parameter groups. Reports patterns that match no tensor.
OptimizerState BindOptimizer(OptimizerSpec spec, const InitGraph& graph, Diagnostics& diagnostics);

// A tensor in a folder.
struct TensorInFolder {
  std::string file;   // the first file that names the tensor
  std::string dtype;  // the type's name in files of that kind
  Shape shape;
  std::vector<FilePiece> pieces;  // cover each element exactly once
};

// Throws Error (kRefused) unless the pieces cover each element of the tensor exactly once. `path`,
// the tensor's file or folder, is for messages.
void RequireWhole(const std::string& name, const TensorInFolder& holding, const std::string& path);

struct Contents {
  std::map<std::string, TensorInFolder> tensors;
  Findings findings;  // faults that do not prevent reading any tensor
  // The parts that are not the model and are not read, by names such as `optimizer`.
  std::map<std::string, PartSize> others = {};
  // The dotted key of the model's part, with which tensor names begin; empty if everything is the
  // model.
  std::string part = {};
  // `__metadata__` of safetensors files, which some libraries need to read the tensors.
  std::map<std::string, std::string> metadata = {};
  // A sentence that describes missing parts of the model; empty if nothing is missing.
  std::string lost = {};
  // True if the files have names that loaders try first.
  bool is_usual = true;
};

struct FileBox {
  const Tensor* tensor;
  Box box;
  int64_t offset;  // offset in the file
};

int64_t BytesOf(const FileBox& box);

// Throws Error (kUsage) if an export's record of this many boxes would be too large to read.
void RequireFewBoxes(int64_t boxes);

// Sorts boxes by the largest power of two up to a page that divides their sizes, descending. If
// they are stored in this order without gaps, from a page on, each box starts at a multiple of its
// own power of two. So it is aligned to its element size, and large boxes start on pages, for
// O_DIRECT.
void SortByAlignment(std::vector<FileBox>* boxes);

// Distributes groups of boxes to files in order, at most `most` bytes to a file; a larger group has
// its own file.
std::vector<std::vector<FileBox>> DistributeToFiles(const std::vector<std::vector<FileBox>>& groups,
                                                    int64_t most);

// The contents of a file, by offset. In an export, a file is its head, then its boxes in ascending
// order, either without gaps or with a text in each gap. A file without boxes is its head.
struct FileLayout {
  std::string path;  // path within the folder; `/` separates subfolders
  std::string head;
  std::vector<FileBox> boxes = {};   // non-empty boxes
  std::vector<FileText> texts = {};  // ascending; bytes that nothing covers are zeros
  int64_t end = 0;                   // the end of the file, if the file may end with zeros
  std::vector<CrcPlace> crcs = {};   // ascending
  // Computes the head, the texts and the places of CRCs; null if they are here. For the millions of
  // boxes of all files, they would take more memory than anything else.
  std::function<void(FileLayout* file)> complete = nullptr;

  // Returns whether the file contains CRCs of boxes.
  bool has_crcs() const { return !crcs.empty() || (complete && !boxes.empty()); }
  // Completes a copy first if the file has no boxes.
  int64_t size() const;
};

// Returns the file with its head, its texts and the places of its CRCs.
FileLayout Completed(const FileLayout& file);

// An option of `export` for some formats; its value is a size.
struct FormatOption {
  std::string_view flag;    // such as `--max-shard-size`
  std::string_view member;  // its name in the record of an export
  std::string_view help, default_text;
};
// The value of each option of the format, in bytes.
using OptionValues = std::map<const FormatOption*, int64_t>;

struct LayoutRequest {
  const Plan& plan;
  const std::vector<const Tensor*>& tensors;  // the tensors to write, in the plan's order
  const OptionValues& options;
  const OptimizerState* optimizer = nullptr;  // null to write no optimizer state
  // `__metadata__` to write to safetensors files.
  std::map<std::string, std::string> metadata = {};
};

// Reads a folder, whoever wrote it. Formats with the same kind of files share a reader.
struct FormatReader {
  std::string_view what;                  // the kind of files, such as `zarr arrays`
  std::string_view ForeignNames::*dtype;  // the names of types in those files
  // Returns nullopt if the folder has no files of that kind. Throws Error (kRefused) if the files
  // are hostile or damaged. `part` is ChooseModel()'s `wanted`.
  std::optional<Contents> (*read)(const std::string& folder, const std::string& part);
  // Reads a single file; null if this kind has no single files.
  Contents (*read_file)(const std::string& path, const std::string& part) = nullptr;
};

extern const FormatReader kSafetensorsReader, kDcpReader, kZarrReader, kTorchReader, kZeroReader,
    kMegatronReader;

struct Format {
  std::string_view name;
  std::string_view description;  // which files these are, and what loads them
  std::vector<FileLayout> (*lay_out)(const LayoutRequest& request);
  const FormatReader* reader = nullptr;  // null if it is not read back
  bool has_optimizers = false;           // true if it can write optimizer state
  std::vector<const FormatOption*> options = {};
  // Patterns such as `a/b`: some readers treat all matching files as parts. A pattern without a
  // slash matches in the folder itself.
  std::vector<std::string_view> globbed = {};
};

std::span<const Format* const> Formats();
// These return each reader and each option once. Readers are in priority order; the first match
// wins.
std::vector<const FormatReader*> FormatReaders();
std::vector<const FormatOption*> FormatOptions();
// Returns the names of the formats that can write optimizer state.
std::vector<std::string> FormatsWithOptimizers();
// Returns the names of the formats that have the option.
std::vector<std::string> FormatsWith(const FormatOption& option);

// The most bytes of tensors in a file, for formats that split by size.
extern const FormatOption kMaxShardSize;
// Returns null if no format has that name.
const Format* FindFormat(std::string_view name);
std::vector<std::string> FormatNames();

}  // namespace shardinit
