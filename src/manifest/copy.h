// Boxes of one plan out of a checkpoint of another: of the same model, on another mesh or in
// another layout.
#pragma once

#include <string>
#include <vector>

#include "manifest/reader.h"
#include "plan/plan.h"

namespace shardinit {

// What it is made from must outlive it.
class CheckpointCopy {
 public:
  // Throws Error (kUsage) if `folder`, of plan `from`, has no complete checkpoint or not all that
  // `to` stores, and (kDifferent) if its receipts are not those of its manifest.
  CheckpointCopy(const std::string& folder, const Plan& from, const Digest& plan_sha256,
                 const Plan& to);

  // The digest of the manifest that is copied from.
  const Digest& manifest_sha256() const { return manifest_sha256_; }

  // An ElementSource of `to`.
  BoxElements Open(const Tensor& tensor, const Box& box) const;
  // That the boxes which a rank of `to` is made from, and no rank before it was, have their
  // digests. Throws Error (kDifferent) if one has not.
  RankCheck CheckOf(const RankPlan& rank);

 private:
  // Where a tensor of `to` comes from: from the same one, or from elements of several.
  struct Origin {
    const Tensor* same = nullptr;
    std::vector<size_t> of;  // Of `from`, if they are several;
    Tensor view = {};        // a view of all that `from` stores.
  };

  void FindOrigins(const Plan& to);

  const std::string folder_;
  const Plan& from_;
  const std::vector<Tensor>& to_;
  const CheckpointReader reader_;
  Digest manifest_sha256_;
  std::vector<Origin> origins_;             // Of each tensor of `to`.
  std::vector<std::vector<bool>> checked_;  // Of each tensor of `from`, its boxes.
};

}  // namespace shardinit
