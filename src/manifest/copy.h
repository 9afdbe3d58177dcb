// Boxes of a plan out of a checkpoint of the same plan, or of another one: of the same model, on
// another mesh or in another layout.
//
// What is copied is what has the digests of the receipts. A box that is copied as it is has its
// digest if the copy has it. Any other box is also read in order, once, to take its digest, and all
// reads of it are of the same bytes (manifest/watched_box.h). Boxes that nothing is taken from, and
// all but the first of several replicas, are not read.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "manifest/file_tasks.h"
#include "manifest/reader.h"
#include "manifest/watched_box.h"
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

  // A TaskSource of boxes of `to`; what it adds are the digests of those boxes of `from` that no
  // call before it asked for. What it returns throws Error (kDifferent) if a digest is not the one
  // that was written.
  std::function<void()> Open(std::vector<BoxTask>* tasks);

 private:
  // Where a tensor of `to` comes from: from the same one, or from elements of several.
  struct Origin {
    const Tensor* same = nullptr;
    Tensor view = {};  // Of all that `from` stores, where it is not the same.
  };

  // A box of the checkpoint, with its digests.
  struct Checked {
    const Tensor* tensor;
    const FilePiece* piece;
    const Digest* wanted;
    std::shared_ptr<const Digest> found;
  };

  void FindOrigins(const Plan& to);
  void Require(const Checked& box) const;
  // Piece `number` of a stored tensor. The first time it is also to be compared with its digest.
  std::shared_ptr<WatchedBox> Watch(const Tensor& stored, size_t number, int64_t cell_bytes,
                                    std::vector<BoxTask>* tasks, std::vector<Checked>* checked);
  // A box of a stored tensor, out of pieces that are watched; 0 cell bytes: as the box needs them.
  BoxElements PartsOf(const Tensor& stored, const Box& box, int64_t cell_bytes,
                      std::vector<BoxTask>* tasks, std::vector<Checked>* checked);

  const std::string folder_;
  const Plan& from_;
  const std::vector<Tensor>& to_;
  const CheckpointReader reader_;
  Digest manifest_sha256_;
  std::vector<Origin> origins_;  // Of each tensor of `to`.
  // Of each tensor of `from`, its boxes that are read in parts.
  std::vector<std::vector<std::shared_ptr<WatchedBox>>> watched_;
};

}  // namespace shardinit
