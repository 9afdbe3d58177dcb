#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "checkpoint/sweep.h"

namespace shardinit {
namespace {

constexpr int64_t kSmallRead = 256 << 10;  // up to this size, whole cells are read

}  // namespace

WatchedBox::WatchedBox(FilePiece piece, int64_t bytes, int64_t cell_bytes)
    : piece_(std::move(piece)),
      bytes_(bytes),
      cell_bytes_(cell_bytes),
      cells_(static_cast<size_t>(CeilDiv(bytes, cell_bytes))),
      read_(cells_.size()) {}

void WatchedBox::Read(InputFile* file, int64_t offset, int64_t bytes, void* out) {
  auto* to = static_cast<uint8_t*>(out);
  const int64_t end = offset + bytes;
  const int64_t begin_cell = offset / cell_bytes_ * cell_bytes_;
  const int64_t end_cell = std::min(bytes_, CeilDiv(end, cell_bytes_) * cell_bytes_);
  if (begin_cell == offset && end_cell == end) {
    ReadPart(piece_, file, offset, bytes, to);
    return Compare(offset, bytes, to);
  }
  if (end_cell - begin_cell > std::max(kSmallRead, cell_bytes_)) {
    // Whole cells are read directly into `out`.
    const int64_t first = CeilDiv(offset, cell_bytes_) * cell_bytes_;
    const int64_t last = end == bytes_ ? end : end / cell_bytes_ * cell_bytes_;
    if (offset < first) Read(file, offset, first - offset, to);
    Read(file, first, last - first, to + (first - offset));
    if (last < end) Read(file, last, end - last, to + (last - offset));
    return;
  }
  std::vector<uint8_t> cells(static_cast<size_t>(end_cell - begin_cell));
  ReadPart(piece_, file, begin_cell, std::ssize(cells), cells.data());
  Compare(begin_cell, std::ssize(cells), cells.data());
  memcpy(to, cells.data() + (offset - begin_cell), static_cast<size_t>(bytes));
}

void WatchedBox::Compare(int64_t offset, int64_t bytes, const uint8_t* data) {
  std::vector<Fingerprint> found;
  for (int64_t at = 0; at < bytes; at += cell_bytes_) {
    found.push_back(FingerprintOf(data + at, std::min(cell_bytes_, bytes - at)));
  }
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t cell = static_cast<size_t>(offset / cell_bytes_) + i;
    if (read_[cell] && cells_[cell] != found[i]) ThrowChanged(piece_);
    cells_[cell] = found[i];
    read_[cell] = true;
  }
}

}  // namespace shardinit
