#include "checkpoint/cell_cache.h"

#include <algorithm>
#include <cstring>

#include "base/checked_math.h"
#include "base/interrupt.h"

namespace shardinit {

CellCache::Bytes CellCache::Get(const SourceTensor& tensor, int64_t cell) {
  const std::pair<uint64_t, int64_t> key(tensor.id(), cell);
  {
    const std::lock_guard lock(mutex_);
    const auto known = cells_.find(key);
    if (known != cells_.end()) return known->second;
  }
  const int64_t count =
      std::min(tensor.cell_elements(), tensor.elements() - cell * tensor.cell_elements());
  auto bytes = std::make_shared<std::vector<uint8_t>>(count * InfoOf(tensor.dtype()).bytes);
  tensor.ReadCells(cell, 1, bytes->data());
  const std::lock_guard lock(mutex_);
  if (!cells_.emplace(key, bytes).second) return bytes;
  order_.push_back(key);
  held_ += std::ssize(*bytes);
  while (held_ > kMostBytes && order_.size() > 1) {
    const auto oldest = cells_.find(order_.front());
    held_ -= std::ssize(*oldest->second);
    cells_.erase(oldest);
    order_.pop_front();
  }
  return bytes;
}

void CellCache::Read(const SourceTensor& tensor, int64_t first, int64_t count, void* out) {
  const int64_t bytes = InfoOf(tensor.dtype()).bytes;
  auto* to = static_cast<uint8_t*>(out);
  while (count > 0) {
    const int64_t cell = first / tensor.cell_elements();
    const int64_t in_cell = first - cell * tensor.cell_elements();
    const Bytes held = Get(tensor, cell);
    const int64_t now = std::min(count, std::ssize(*held) / bytes - in_cell);
    std::memcpy(to, held->data() + in_cell * bytes, static_cast<size_t>(now * bytes));
    first += now, count -= now, to += now * bytes;
  }
}

Digest ComputedTensor::Check() const {
  const std::lock_guard lock(mutex_);
  if (digest_) return *digest_;
  Sha256 hash;
  const int64_t bytes = InfoOf(dtype()).bytes;
  std::vector<uint8_t> cell(static_cast<size_t>(std::min(cell_elements(), elements()) * bytes));
  for (int64_t number = 0; number < CeilDiv(elements(), cell_elements()); ++number) {
    ThrowIfInterrupted();
    ReadCells(number, 1, cell.data());
    const int64_t count = std::min(cell_elements(), elements() - number * cell_elements());
    hash.Update(cell.data(), static_cast<size_t>(count * bytes));
  }
  digest_ = hash.Finish();
  return *digest_;
}

}  // namespace shardinit
