// Finds tensors in flat vectors, into which trainers join many tensors before they split the
// vector between ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/format.h"

namespace shardinit::dcp {

// A vector of one element type that is stored in runs.
class FlatVector {
 public:
  // Appends all elements of a stored vector, which is at most one contiguous piece. `path`, its
  // file, is for messages. Throws Error (kRefused).
  void Append(const TensorInFolder& stored, const std::string& path);

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  const std::string& dtype() const { return dtype_; }

  // Makes elements `at` to `at` + `count` - 1 of the vector the tensor's elements from `first` on.
  // The vector must have them.
  void Place(int64_t at, int64_t count, int64_t first, TensorInFolder* tensor) const;

 private:
  std::string dtype_;
  int64_t element_bytes_ = 0;
  std::vector<FilePiece> runs_;
  std::vector<int64_t> ends_;  // the position in the vector after each run
};

}  // namespace shardinit::dcp
