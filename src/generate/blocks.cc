#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/error.h"
#include "base/output_file.h"
#include "base/parallel.h"
#include "generate/workers.h"

namespace shardinit {
namespace {

constexpr int64_t kLargestBlock = 4 << 20;  // Larger writes would not be faster.
// A longer block has longer runs of a source whose elements are in a different order.
constexpr int64_t kLongestBlock = 16 << 20;
constexpr int64_t kSmallestBlock = 256 << 10;

}  // namespace

BlockLayout BlocksFor(const WorkerOptions& options) {
  const int jobs = options.jobs > 0 ? options.jobs : AvailableCores();
  // Each generating thread holds two blocks and has one more waiting for its hash. Each writer
  // holds one and has one waiting.
  const int64_t wanted = 3 * int64_t{jobs} + 2 * int64_t{options.writers};
  const int64_t bytes =
      std::clamp(options.memory / wanted / kDirectUnit * kDirectUnit, kSmallestBlock,
                 options.has_long_blocks ? kLongestBlock : kLargestBlock);
  return {std::clamp<int64_t>(options.memory / bytes, 2, wanted), bytes};
}

Blocks::Blocks(const BlockLayout& layout) : layout_(layout) {
  const size_t size = static_cast<size_t>(layout.count * layout.bytes);
  memory_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED) {
    throw Error(ExitCode::kWorld, fmt::format("cannot get {} bytes of memory for blocks", size),
                "use fewer threads (`--jobs`) or less memory (`--memory`)");
  }
  madvise(memory_, size, MADV_HUGEPAGE);
  for (int64_t i = layout.count; i-- > 0;) {
    free_.push_back(static_cast<uint8_t*>(memory_) + i * layout.bytes);
  }
}

Blocks::~Blocks() { munmap(memory_, static_cast<size_t>(layout_.count * layout_.bytes)); }

uint8_t* Blocks::Take() {
  uint8_t* const block = free_.back();
  free_.pop_back();
  return block;
}

}  // namespace shardinit
