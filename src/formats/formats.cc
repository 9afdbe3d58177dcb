#include <algorithm>

#include "formats/format.h"

namespace shardinit {

namespace {

template <typename T>
void AddNew(const T* item, std::vector<const T*>* items) {
  if (std::find(items->begin(), items->end(), item) == items->end()) items->push_back(item);
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

const Format* FindFormat(std::string_view name) {
  for (const Format* format : Formats()) {
    if (format->name == name) return format;
  }
  return nullptr;
}

std::vector<std::string> FormatNames() {
  std::vector<std::string> names;
  for (const Format* format : Formats()) names.emplace_back(format->name);
  return names;
}

std::vector<const FormatReader*> FormatReaders() {
  std::vector<const FormatReader*> readers;
  for (const Format* format : Formats()) {
    if (format->reader != nullptr) AddNew(format->reader, &readers);
  }
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
  std::vector<std::string> names;
  for (const Format* format : Formats()) {
    if (std::count(format->options.begin(), format->options.end(), &option) != 0) {
      names.emplace_back(format->name);
    }
  }
  return names;
}

std::vector<std::string> FormatsWithOptimizers() {
  std::vector<std::string> names;
  for (const Format* format : Formats()) {
    if (format->has_optimizers) names.emplace_back(format->name);
  }
  return names;
}

int64_t BytesOf(const FileBox& box) {
  return ElementCount(box.box.shape) * InfoOf(box.tensor->dtype).bytes;
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

int64_t FileLayout::size() const {
  int64_t size = std::max(end, std::ssize(head));
  for (const FileBox& box : boxes) size = std::max(size, box.offset + BytesOf(box));
  for (const FileText& text : texts) size = std::max(size, text.offset + std::ssize(text.bytes));
  return size;
}

}  // namespace shardinit
