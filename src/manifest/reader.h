// The values of a checkpoint's tensors, out of its rank files.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

class CheckpointReader {
 public:
  // Throws Error if a rank has no valid receipt. What the receipts say of the
  // bytes is for verify to check.
  CheckpointReader(const std::string& folder, const Plan& plan, const Digest& plan_sha256);

  // Reads elements first … first + count - 1 of a box, in the box's row-major
  // order, from whichever ranks hold them. Safe to use from several threads.
  void Read(const Tensor& tensor, const Box& box, int64_t first, int64_t count, void* out) const;

 private:
  struct Piece {
    Box box;
    int64_t rank;
    int64_t offset;  // In the rank's file.
  };
  void ReadPiece(const Tensor& tensor, const Piece& piece, const Box& box, int64_t first,
                 int64_t count, uint8_t* out) const;

  const std::string folder_;
  std::unordered_map<const Tensor*, std::vector<Piece>> pieces_;  // Each box once.
};

}  // namespace shardinit
