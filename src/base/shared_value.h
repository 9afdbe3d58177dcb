// Shares a value between copies until one of them is changed.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace shardinit {

// Takes 8 bytes; a default value takes no more.
template <typename T>
class SharedValue {
 public:
  SharedValue() = default;
  SharedValue(const SharedValue& other) noexcept : held_(other.held_) {
    if (held_ != nullptr) held_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  SharedValue(SharedValue&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  SharedValue& operator=(SharedValue other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~SharedValue() {
    if (held_ != nullptr && held_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete held_;
    }
  }

  const T& operator*() const { return held_ != nullptr ? held_->value : Default(); }
  const T* operator->() const { return &**this; }
  bool IsSharedWith(const SharedValue& other) const { return held_ == other.held_; }

  // Returns the value for changes, unshared. Do not use the reference after copying this object.
  T& Edit() {
    if (held_ == nullptr || held_->holders.load(std::memory_order_acquire) != 1) {
      SharedValue own;
      own.held_ = new SharedBlock{1, **this};
      std::swap(held_, own.held_);
    }
    return held_->value;
  }

 private:
  struct SharedBlock {
    std::atomic<uint32_t> holders;
    T value;
  };

  static const T& Default() {
    static const T value;
    return value;
  }

  SharedBlock* held_ = nullptr;
};

}  // namespace shardinit
