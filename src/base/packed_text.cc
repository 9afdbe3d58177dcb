#include "base/packed_text.h"

#include <new>

#include "base/error.h"

namespace shardinit {

// Writes into a thread's newest block, of which it is also a holder.
class PackedText::Writer {
 public:
  static Writer& OfThisThread() {
    thread_local Writer writer;
    return writer;
  }
  ~Writer() {
    if (block_ != nullptr) Drop(block_);
  }

  const char* Write(std::string_view text) {
    const auto size = static_cast<uint16_t>(text.size());
    const size_t needed = sizeof size + size + 1;
    if (block_ == nullptr || used_ + needed > kBlock) Begin(sizeof(Block) + needed);
    char* const place = reinterpret_cast<char*>(block_) + used_;
    std::memcpy(place, &size, sizeof size);
    std::memcpy(place + sizeof size, text.data(), size);
    place[sizeof size + size] = 0;
    used_ += needed;
    Keep(block_);
    return place;
  }

 private:
  // Leaves room for the allocator's header, so that consecutive blocks fit without gaps.
  static constexpr size_t kBlock = kAlignment - 2 * sizeof(size_t);

  // A text that is longer than a block gets its own block, which is then full.
  void Begin(size_t least) {
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlignment, least > kBlock ? least : kBlock) != 0) {
      throw std::bad_alloc();
    }
    if (block_ != nullptr) Drop(block_);
    block_ = new (memory) Block;
    used_ = sizeof(Block);
  }

  Block* block_ = nullptr;
  size_t used_ = 0;
};

PackedText::PackedText(std::string_view text) {
  Check(text.size() <= kLongest, "a text that is too long to be packed");
  if (!text.empty()) text_ = Writer::OfThisThread().Write(text);
}

}  // namespace shardinit
