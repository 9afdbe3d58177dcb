// An output format says which files there are, where in each of them every box lies, and how such a
// folder is read back. export/ makes the values, writes and compares.
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
  // The number of each tensor's parameter group in the spec. A tensor that is not here has no
  // state.
  std::unordered_map<const Tensor*, size_t> group_of;

  bool has_hyperparameters() const { return !spec.groups[0].hyperparameters.empty(); }
};

// Finds the groups of a graph's tensors. Reports patterns that match none.
OptimizerState BindOptimizer(OptimizerSpec spec, const InitGraph& graph, Diagnostics& diagnostics);

// A tensor as the folder has it.
struct Holding {
  std::string file;   // the file that names it first
  std::string dtype;  // the type as files of that kind write it
  Shape shape;
  std::vector<FilePiece> pieces;  // Together they are the whole tensor, none of it twice.
};

// Throws Error (kRefused) unless the pieces are the whole tensor, none of it twice. `path` is where
// the tensor was found.
void RequireWhole(const std::string& name, const Holding& holding, const std::string& path);

struct Contents {
  std::map<std::string, Holding> tensors;
  Findings findings;  // Faults of the folder that keep no tensor from being read.
  // The parts that are not the model and are not read, by names such as `optimizer`.
  std::map<std::string, PartSize> others = {};
  // The keys, with dots, of the part that is the model; the names begin with them. Empty: it is
  // all.
  std::string part = {};
  // What safetensors files have in `__metadata__`, which some libraries need to read the tensors.
  std::map<std::string, std::string> metadata = {};
  // A sentence that says what is missing of the model; empty: nothing.
  std::string lost = {};
  // Whether the files have names that loaders try first.
  bool is_usual = true;
};

struct FileBox {
  const Tensor* tensor;
  Box box;
  int64_t offset;  // offset in the file
};

int64_t BytesOf(const FileBox& box);

// Sorts boxes by the largest power of two up to a page that divides their sizes, descending. Laid
// one behind the other from a page on, every box then starts at a multiple of its own power of two,
// so of its element size, and large boxes start on pages, for O_DIRECT.
void SortByAlignment(std::vector<FileBox>* boxes);

// Distributes groups of boxes in their order, as many to a file as have `most` bytes; a larger
// group has a file alone.
std::vector<std::vector<FileBox>> DistributeToFiles(const std::vector<std::vector<FileBox>>& groups,
                                                    int64_t most);

// The contents of a file, by offset. In an export a file is its head followed by boxes, ascending,
// either without gaps or with a text in the gap after each; a file without boxes is its head.
struct FileLayout {
  std::string path;  // path within the folder; `/` makes subfolders
  std::string head;
  std::vector<FileBox> boxes = {};   // non-empty boxes
  std::vector<FileText> texts = {};  // ascending; bytes that nothing covers are zeros
  int64_t end = 0;                   // The end of the file, if zeros may be the last of it.
  std::vector<CrcPlace> crcs = {};   // ascending
  // Null: all of that is here. Else it makes the head, the texts and the places of CRCs, which for
  // the millions of boxes of all files would take more memory than anything else.
  std::function<void(FileLayout* file)> complete = nullptr;

  // Returns whether the CRCs of boxes stand in the file.
  bool has_crcs() const { return !crcs.empty() || (complete && !boxes.empty()); }
  // A file that is all text is completed for this if it is not.
  int64_t size() const;
};

// Returns the file with its head, its texts and the places of its CRCs.
FileLayout Completed(const FileLayout& file);

// An option of `export` that some formats have; its value is a size.
struct FormatOption {
  std::string_view flag;    // `--max-shard-size`.
  std::string_view member;  // the name in the record of an export
  std::string_view help, default_text;
};
// The bytes given for each option of the format.
using OptionValues = std::map<const FormatOption*, int64_t>;

struct LayoutRequest {
  const Plan& plan;
  const std::vector<const Tensor*>& tensors;  // the tensors to write, in the plan's order
  const OptionValues& options;
  const OptimizerState* optimizer = nullptr;  // Null: none is written.
  // What safetensors files are to have in `__metadata__`.
  std::map<std::string, std::string> metadata = {};
};

// Reads a folder back, whoever wrote it. Formats with the same kind of files share one.
struct FormatReader {
  std::string_view what;                  // the kind of files: `zarr arrays`
  std::string_view ForeignNames::*dtype;  // the name of a type in those files
  // None: there is nothing of that kind in the folder. Throws Error (kRefused) if what is there is
  // hostile or damaged. `part` is that of ChooseModel().
  std::optional<Contents> (*read)(const std::string& folder, const std::string& part);
  // Reads a file that stands alone. Null: there is none of that kind.
  Contents (*read_file)(const std::string& path, const std::string& part) = nullptr;
};

extern const FormatReader kSafetensorsReader, kDcpReader, kZarrReader, kTorchReader;

struct Format {
  std::string_view name;
  std::string_view description;  // which files these are, and what loads them
  std::vector<FileLayout> (*lay_out)(const LayoutRequest& request);
  const FormatReader* reader = nullptr;  // Null: it is not read back.
  bool has_optimizers = false;           // Whether it writes the state of an optimizer.
  std::vector<const FormatOption*> options = {};
  // Patterns of names, as in `a/b`, that some readers take for parts wherever they find them. A
  // pattern without a slash applies to the folder itself.
  std::vector<std::string_view> globbed = {};
};

std::span<const Format* const> Formats();
// These list each reader and each option once; readers stand in the order in which a folder is read
// as the first that finds something in it.
std::vector<const FormatReader*> FormatReaders();
std::vector<const FormatOption*> FormatOptions();
// Returns the names of the formats that write the states of optimizers.
std::vector<std::string> FormatsWithOptimizers();
// Returns the names of the formats that have the option.
std::vector<std::string> FormatsWith(const FormatOption& option);

// The most bytes of tensors in a file, where a format cuts by size.
extern const FormatOption kMaxShardSize;
// Returns null if no format has that name.
const Format* FindFormat(std::string_view name);
std::vector<std::string> FormatNames();

}  // namespace shardinit
