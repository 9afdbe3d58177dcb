// Finds where the values of a checkpoint's tensors lie in its rank files.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/manifest.h"
#include "formats/pieces.h"
#include "plan/plan.h"

namespace shardinit {

class CheckpointReader {
 public:
  // Throws Error if a rank has no valid receipt. It does not check what the receipts say of the
  // bytes; verify does.
  CheckpointReader(const std::string& folder, const Plan& plan, const Digest& plan_sha256);

  // These have each box once, and the digest that the receipt gives of each.
  const std::vector<FilePiece>& PiecesOf(const Tensor& tensor) const {
    return held_.at(&tensor).pieces;
  }
  const std::vector<Digest>& DigestsOf(const Tensor& tensor) const {
    return held_.at(&tensor).digests;
  }
  // The entries of all ranks, for WriteManifest().
  const std::vector<ReceiptEntry>& receipts() const { return receipts_; }

 private:
  struct Held {
    std::vector<FilePiece> pieces;
    std::vector<Digest> digests;
  };
  std::unordered_map<const Tensor*, Held> held_;
  std::vector<ReceiptEntry> receipts_;
};

}  // namespace shardinit
