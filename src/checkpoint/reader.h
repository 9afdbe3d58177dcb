// Finds the values of a checkpoint's tensors in its rank files.
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
  // Throws Error if a rank has no valid receipt. Does not compare bytes with receipts; verify does.
  CheckpointReader(const std::string& folder, const Plan& plan, const Digest& plan_sha256);

  // Return each box once, and its digest in the receipt.
  const std::vector<FilePiece>& PiecesOf(const Tensor& tensor) const {
    return held_.at(&tensor).pieces;
  }
  const std::vector<Digest>& DigestsOf(const Tensor& tensor) const {
    return held_.at(&tensor).digests;
  }
  // The entries of all ranks, for WriteManifest().
  const std::vector<ReceiptEntry>& receipts() const { return receipts_; }

 private:
  struct StoredBoxes {
    std::vector<FilePiece> pieces;
    std::vector<Digest> digests;
  };
  std::unordered_map<const Tensor*, StoredBoxes> held_;
  std::vector<ReceiptEntry> receipts_;
};

}  // namespace shardinit
