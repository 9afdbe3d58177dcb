// An output format: which files there are, and where in each of them every box
// lies; and how such a folder is read back. A format only says where; export/ makes
// the values, writes and compares.
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
  int64_t offset;  // In the file.
};

int64_t BytesOf(const FileBox& box);

// By the largest power of two up to a page that divides the box's size,
// descending: behind one another from a page on, every box starts at a multiple
// of its own, so of its element size, and large ones on pages, for O_DIRECT.
void SortByAlignment(std::vector<FileBox>* boxes);

struct FileText {
  int64_t offset;
  std::string bytes;
};

// Where the CRC-32 of a box's bytes stands in a file: four bytes within its head or one of its
// texts, zeros until the box is made.
struct CrcPlace {
  int64_t offset;
  size_t box;
};

// What lies where in a file. In an export a file is its head, and behind that boxes, ascending:
// without gaps, or a text fills the one behind each; what is all text is head.
struct FileLayout {
  std::string path;  // Within the folder; `/` makes subfolders.
  std::string head;
  std::vector<FileBox> boxes = {};   // None of them empty.
  std::vector<FileText> texts = {};  // Ascending. What is nowhere is zeros.
  int64_t end = 0;                   // Of the file, where zeros may be the last of it.
  std::vector<CrcPlace> crcs = {};   // Ascending.

  int64_t size() const;
};

// An option of `export` that some formats have: a size.
struct FormatOption {
  std::string_view flag;    // `--max-shard-size`.
  std::string_view member;  // Its name in the record of an export.
  std::string_view help, default_text;
};
// The bytes given for each option that the format has.
using OptionValues = std::map<const FormatOption*, int64_t>;

struct LayoutRequest {
  const Plan& plan;
  const std::vector<const Tensor*>& tensors;  // Those to write, in the plan's order.
  const OptionValues& options;
  const OptimizerState* optimizer = nullptr;  // Null: none is written.
};

// Reads a folder back, whoever wrote it. Formats of the same kind of files share one.
struct FormatReader {
  std::string_view what;                     // `zarr arrays`.
  std::string_view (*name_of)(DType dtype);  // As those files write a type.
  // None: there is nothing of that kind in the folder. Throws Error (kRefused) if what is there is
  // hostile or damaged.
  std::optional<Contents> (*read)(const std::string& folder);
};

struct Format {
  std::string_view name;
  std::vector<FileLayout> (*lay_out)(const LayoutRequest& request);
  const FormatReader* reader = nullptr;  // Null: it is not read back.
  bool has_optimizers = false;           // Whether it writes the state of one.
  std::vector<const FormatOption*> options = {};
  // Patterns of the names, as in `a/b`, that some readers take for parts wherever they find them;
  // one without a slash is for the folder itself.
  std::vector<std::string_view> globbed = {};
};

std::span<const Format* const> Formats();
// Each once.
std::vector<const FormatReader*> FormatReaders();
std::vector<const FormatOption*> FormatOptions();
// The names of those that write the states of optimizers.
std::vector<std::string> FormatsWithOptimizers();
// The names of those that have the option.
std::vector<std::string> FormatsWith(const FormatOption& option);

// Most bytes of tensors in a file, where a format cuts by size.
extern const FormatOption kMaxShardSize;
// Null: there is none of that name.
const Format* FindFormat(std::string_view name);
std::vector<std::string> FormatNames();

}  // namespace shardinit
