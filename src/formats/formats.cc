#include "formats/format.h"

namespace shardinit {

extern const Format kSafetensors, kDcp, kZarr;

std::span<const Format* const> Formats() {
  static constexpr const Format* kFormats[] = {
      &kSafetensors,
      &kDcp,
      &kZarr,
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

int64_t FileLayout::size() const {
  if (boxes.empty()) return static_cast<int64_t>(head.size());
  const FileBox& last = boxes.back();
  return last.offset + ElementCount(last.box.shape) * InfoOf(last.tensor->dtype).bytes;
}

}  // namespace shardinit
