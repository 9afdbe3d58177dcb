// Stores a text in 8 bytes plus its length, for lists with millions of texts. A std::string takes
// 32 bytes, and allocates from 16 characters on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace shardinit {

// A thread packs its texts into blocks, each of which is freed with its last text. A text may move
// to another thread and be copied there.
class PackedText {
 public:
  static constexpr size_t kLongest = UINT16_MAX;

  PackedText() = default;
  // `text` must have at most kLongest bytes.
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

  // The text is valid as long as this object or a copy of it exists. A zero byte follows a nonempty
  // text, for C.
  std::string_view view() const {
    if (text_ == nullptr) return {};
    uint16_t size;
    std::memcpy(&size, text_, sizeof size);
    return {text_ + sizeof size, size};
  }

 private:
  class Writer;  // packs a thread's texts

  // A block begins at a multiple of kAlignment, and each of its texts begins in its first
  // kAlignment bytes. So the address of a text determines its block.
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
