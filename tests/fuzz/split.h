// Splits the bytes that a fuzz target gets into the texts that it tries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shardinit {

// Returns `count` texts, which are separated by 0xff, a byte that never occurs in UTF-8.
inline std::vector<std::string> SplitInput(const uint8_t* data, size_t size, size_t count) {
  std::vector<std::string> parts(1);
  for (const uint8_t byte : std::vector<uint8_t>(data, data + size)) {
    byte == 0xff && parts.size() < count ? static_cast<void>(parts.emplace_back())
                                         : parts.back().push_back(static_cast<char>(byte));
  }
  parts.resize(count);
  return parts;
}

}  // namespace shardinit
