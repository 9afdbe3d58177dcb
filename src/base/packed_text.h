// A text in 8 bytes and its own length, for lists that have millions: a std::string takes 32 bytes,
// and from 16 characters on a piece of the heap besides.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace shardinit {

// Texts that a thread makes lie one behind another in blocks, each of which is freed with the last
// of its texts. A text may go to another thread and be copied there.
class PackedText {
 public:
  static constexpr size_t kLongest = UINT16_MAX;

  PackedText() = default;
  // `text` has at most kLongest bytes.
  explicit PackedText(std::string_view text);
  PackedText(const PackedText& other) noexcept : text_(other.text_) {
    if (text_ != nullptr) Keep(BlockOf(text_));
  }
  PackedText(PackedText&& other) noexcept : text_(std::exchange(other.text_, nullptr)) {}
  PackedText& operator=(PackedText other) noexcept {
    std::swap(text_, other.text_);
    return *this;
  }
  ~PackedText() {
    if (text_ != nullptr) Drop(BlockOf(text_));
  }

  // The text is valid as long as this, or a copy of this, is. If it is not empty, a zero byte is
  // behind it, for C.
  std::string_view view() const {
    if (text_ == nullptr) return {};
    uint16_t size;
    std::memcpy(&size, text_, sizeof size);
    return {text_ + sizeof size, size};
  }

 private:
  class Writer;  // packs a thread's texts

  // A block begins at a multiple of kAlignment, and each of its texts in its first so many bytes,
  // so the block is found from the text.
  static constexpr size_t kAlignment = 4096;

  struct Block {
    std::atomic<uint32_t> holders = 1;
  };

  static Block* BlockOf(const char* text) {
    return reinterpret_cast<Block*>(reinterpret_cast<uintptr_t>(text) & ~(kAlignment - 1));
  }
  static void Keep(Block* block) { block->holders.fetch_add(1, std::memory_order_relaxed); }
  static void Drop(Block* block) {
    if (block->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) std::free(block);
  }

  const char* text_ = nullptr;
};

}  // namespace shardinit
