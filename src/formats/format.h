// An output format says which files there are, where in each of them every box lies, and how such a
// folder is read back. export/ makes the values, writes and compares.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/contents.h"
#include "formats/optimizer.h"
#include "plan/plan.h"

namespace shardinit {

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

struct FileText {
  int64_t offset;
  std::string bytes;
};

// The place of the CRC-32 of a box's bytes in a file: four bytes within its head or one of its
// texts, zeros until the box is made.
struct CrcPlace {
  int64_t offset;
  size_t box;
};

// Says what lies where in a file. In an export a file is its head followed by boxes, ascending,
// either without gaps or with a text in the gap behind each; a file that is all text is its head.
struct FileLayout {
  std::string path;  // path within the folder; `/` makes subfolders
  std::string head;
  std::vector<FileBox> boxes = {};   // non-empty boxes
  std::vector<FileText> texts = {};  // Ascending. Bytes that nothing covers are zeros.
  int64_t end = 0;                   // The end of the file, if zeros may be the last of it.
  std::vector<CrcPlace> crcs = {};   // ascending

  int64_t size() const;
};

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
};

// Reads a folder back, whoever wrote it. Formats with the same kind of files share one.
struct FormatReader {
  std::string_view what;                     // the kind of files: `zarr arrays`
  std::string_view (*name_of)(DType dtype);  // the name of a type in those files
  // None: there is nothing of that kind in the folder. Throws Error (kRefused) if what is there is
  // hostile or damaged.
  std::optional<Contents> (*read)(const std::string& folder);
};

extern const FormatReader kSafetensorsReader, kDcpReader, kZarrReader;

struct Format {
  std::string_view name;
  std::vector<FileLayout> (*lay_out)(const LayoutRequest& request);
  const FormatReader* reader = nullptr;  // Null: it is not read back.
  bool has_optimizers = false;           // Whether it writes the state of an optimizer.
  std::vector<const FormatOption*> options = {};
  // Patterns of names, as in `a/b`, that some readers take for parts wherever they find them. A
  // pattern without a slash applies to the folder itself.
  std::vector<std::string_view> globbed = {};
};

std::span<const Format* const> Formats();
// These list each reader and each option once.
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
