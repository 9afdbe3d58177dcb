// Reads elements of a source's tensors that other tensors are computed from.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tensor/source.h"

namespace shardinit {

// Caches the cells of stored tensors that were read last. A cell may be needed many times, for
// example if a layout transposes. Thread-safe.
class CellCache {
 public:
  using Bytes = std::shared_ptr<const std::vector<uint8_t>>;

  Bytes Get(const SourceTensor& tensor, int64_t cell);
  void Read(const SourceTensor& tensor, int64_t first, int64_t count, void* out);

 private:
  static constexpr int64_t kMostBytes = 48 << 20;
  std::mutex mutex_;
  std::map<std::pair<uint64_t, int64_t>, Bytes> cells_;  // by the tensor and the cell
  std::deque<std::pair<uint64_t, int64_t>> order_;       // oldest first
  int64_t held_ = 0;
};

// A tensor that ReadCells() computes from stored tensors, which compare every byte that is read
// with the hashed bytes. So all readers get elements of the same digest.
class ComputedTensor : public SourceTensor {
 public:
  using SourceTensor::SourceTensor;
  Digest Check() const final;

 private:
  mutable std::mutex mutex_;
  mutable std::optional<Digest> digest_;
};

}  // namespace shardinit
