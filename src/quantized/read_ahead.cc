#include "quantized/read_ahead.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

namespace shardinit {
namespace {

class ReadAhead {
 public:
  ReadAhead(BoxElements read, const Tensor& part, size_t number)
      : read_(std::move(read)),
        elements_(part.elements()),
        bytes_(InfoOf(part.dtype()).bytes),
        number_(number) {}

  void operator()(int64_t first, int64_t count, void* out) const {
    Chunk& chunk = chunks_[number_];
    const bool is_next =
        chunk.id == id_ && first >= chunk.last && (first - chunk.last) * bytes_ < kLongestGap;
    const bool is_here = chunk.id == id_ && first >= chunk.first &&
                         first + count <= chunk.first + std::ssize(chunk.elements) / bytes_;
    if (!is_here) {
      if (!is_next || count * bytes_ > kLongestGap) {
        chunk = {id_, first, first + count, {}};
        return read_(first, count, out);
      }
      const int64_t many = std::min(kAhead / bytes_, elements_ - first);
      chunk.id = 0;  // if reading fails
      chunk.elements.resize(static_cast<size_t>(many * bytes_));
      read_(first, many, chunk.elements.data());
      chunk.id = id_, chunk.first = first;
    }
    chunk.last = first + count;
    std::memcpy(out, &chunk.elements[static_cast<size_t>((first - chunk.first) * bytes_)],
                static_cast<size_t>(count * bytes_));
  }

 private:
  static constexpr int64_t kLongestGap = 16 << 10, kAhead = 64 << 10;  // bytes
  struct Chunk {
    uint64_t id = 0;              // of the reader
    int64_t first = 0, last = 0;  // the first element here, and the end of those read last
    std::vector<uint8_t> elements = {};
  };

  static thread_local std::array<Chunk, Widening::kParts> chunks_;
  static std::atomic<uint64_t> ids_;
  const BoxElements read_;
  const int64_t elements_, bytes_;
  const size_t number_;
  const uint64_t id_ = ++ids_;
};

thread_local std::array<ReadAhead::Chunk, Widening::kParts> ReadAhead::chunks_;
std::atomic<uint64_t> ReadAhead::ids_;

}  // namespace

std::array<BoxElements, Widening::kParts> ReadingAhead(
    const Widening& widening, std::array<BoxElements, Widening::kParts> stored) {
  for (size_t part = 0; part < Widening::kParts; ++part) {
    if (stored[part] != nullptr && !widening.parts[part].path().empty()) {
      stored[part] = ReadAhead(std::move(stored[part]), widening.parts[part], part);
    }
  }
  return stored;
}

}  // namespace shardinit
