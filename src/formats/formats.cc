#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "formats/format.h"
#include "report/text.h"

namespace shardinit {

namespace {

template <typename T>
void AddNew(const T* item, std::vector<const T*>* items) {
  if (std::find(items->begin(), items->end(), item) == items->end()) items->push_back(item);
}

// Returns the names of formats for which `holds` is true.
template <typename F>
std::vector<std::string> NamesOfThose(F holds) {
  std::vector<std::string> names;
  for (const Format* format : Formats()) {
    if (holds(*format)) names.emplace_back(format->name);
  }
  return names;
}

}  // namespace

extern const FormatOption kMaxShardSize = {
    .flag = "--max-shard-size",
    .member = "max_shard_size",
    .help = "most bytes of tensors in a file",
    .default_text = "5GB",
};

extern const Format kSafetensors, kDcp, kHfDcp, kMegatron, kZarr, kKeras;

std::span<const Format* const> Formats() {
  static constexpr const Format* kFormats[] = {
      &kSafetensors, &kDcp, &kHfDcp, &kMegatron, &kZarr, &kKeras,
  };
  return kFormats;
}

const Format* FindFormat(std::string_view name) { return FindNamed(Formats(), name); }

std::vector<std::string> FormatNames() { return NamesOf(Formats()); }

std::vector<const FormatReader*> FormatReaders() {
  std::vector<const FormatReader*> readers;
  for (const Format* format : Formats()) {
    if (format->reader != nullptr) AddNew(format->reader, &readers);
  }
  // No format writes these files.
  readers.insert(readers.end(), {&kTorchReader, &kZeroReader, &kMegatronReader});
  return readers;
}

std::vector<const FormatOption*> FormatOptions() {
  std::vector<const FormatOption*> options;
  for (const Format* format : Formats()) {
    for (const FormatOption* option : format->options) AddNew(option, &options);
  }
  return options;
}

std::vector<std::string> FormatsWith(const FormatOption& option) {
  return NamesOfThose([&](const Format& format) {
    return std::count(format.options.begin(), format.options.end(), &option) != 0;
  });
}

std::vector<std::string> FormatsWithOptimizers() {
  return NamesOfThose([](const Format& format) { return format.has_optimizers; });
}

int64_t BytesOf(const FileBox& box) {
  return ElementCount(box.box.shape) * InfoOf(box.tensor->dtype()).bytes;
}

void RequireFewBoxes(int64_t boxes) {
  // The record then stays within its limit, unless tensors have very long names.
  constexpr int64_t kMostBoxes = 8'000'000;
  if (boxes <= kMostBoxes) return;
  throw Error(
      ExitCode::kUsage,
      fmt::format("the files of this export would have {} pieces, more than {}", Grouped(boxes),
                  Grouped(kMostBoxes)),
      "store fewer and larger tensors, with a layout that joins layers or experts, or use a "
      "smaller `--mesh`");
}

void SortByAlignment(std::vector<FileBox>* boxes) {
  const auto alignment = [](const FileBox& box) {
    constexpr int64_t kPage = 4096;
    const int64_t bytes = BytesOf(box);
    return std::min(bytes & -bytes, kPage);
  };
  std::stable_sort(boxes->begin(), boxes->end(),
                   [&](const FileBox& a, const FileBox& b) { return alignment(a) > alignment(b); });
}

std::vector<std::vector<FileBox>> DistributeToFiles(const std::vector<std::vector<FileBox>>& groups,
                                                    int64_t most) {
  std::vector<std::vector<FileBox>> files(1);
  int64_t room = most;
  for (const std::vector<FileBox>& group : groups) {
    int64_t bytes = 0;
    for (const FileBox& box : group) bytes += BytesOf(box);
    if (!files.back().empty() && bytes > room) {
      files.emplace_back();
      room = most;
    }
    files.back().insert(files.back().end(), group.begin(), group.end());
    room -= bytes;
  }
  return files;
}

FileLayout Completed(const FileLayout& file) {
  FileLayout whole = file;
  if (file.complete) file.complete(&whole);
  whole.complete = nullptr;
  return whole;
}

int64_t FileLayout::size() const {
  if (complete && boxes.empty()) return Completed(*this).size();
  int64_t size = std::max(end, std::ssize(head));
  for (const FileBox& box : boxes) size = std::max(size, box.offset + BytesOf(box));
  for (const FileText& text : texts) size = std::max(size, text.offset + std::ssize(text.bytes));
  return size;
}

void RequireWhole(const std::string& name, const TensorInFolder& holding, const std::string& path) {
  int64_t count = 0;
  std::vector<const Box*> boxes;
  for (const FilePiece& piece : holding.pieces) {
    count += ElementCount(piece.box.shape);
    boxes.push_back(&piece.box);
  }
  if (const auto twice = FindOverlap(boxes)) {
    throw Error(ExitCode::kRefused,
                fmt::format("{} is in `{}` and `{}`", Quote(name),
                            holding.pieces[twice->first].file, holding.pieces[twice->second].file));
  }
  int64_t whole = 1;
  for (const int64_t extent : holding.shape) {
    if (__builtin_mul_overflow(whole, extent, &whole)) whole = -1;
  }
  if (count != whole) {
    throw Error(ExitCode::kRefused,
                fmt::format("{} in `{}` is not whole: its boxes have {} of the {} elements of {}",
                            Quote(name), path, count, whole, InShape(holding.shape)));
  }
}

}  // namespace shardinit
