#include "base/crc32.h"

#include <libdeflate.h>

namespace shardinit {

uint32_t Crc32(uint32_t before, std::string_view bytes) {
  // libdeflate takes a null pointer, which an empty view may have, for a new beginning.
  return bytes.empty() ? before : libdeflate_crc32(before, bytes.data(), bytes.size());
}

}  // namespace shardinit
