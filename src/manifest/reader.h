// Where the values of a checkpoint's tensors lie in its rank files.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "formats/pieces.h"
#include "plan/plan.h"

namespace shardinit {

class CheckpointReader {
 public:
  // Throws Error if a rank has no valid receipt. What the receipts say of the
  // bytes is for verify to check.
  CheckpointReader(const std::string& folder, const Plan& plan, const Digest& plan_sha256);

  // Each box once.
  const std::vector<FilePiece>& PiecesOf(const Tensor& tensor) const { return pieces_.at(&tensor); }
  // An ElementSource.
  void Read(const Tensor& tensor, const Box& box, int64_t first, int64_t count, void* out) const;

 private:
  std::unordered_map<const Tensor*, std::vector<FilePiece>> pieces_;
};

}  // namespace shardinit
