// Boxes of a plan out of a checkpoint of the same plan, or of another one: of the same model, on
// another mesh or in another layout.
//
// What is copied is what has the digests of the receipts: the bytes that are hashed for those are
// the ones that go into the copy. A box that is copied as it is has its digest if the copy has it.
// Boxes that are cut elsewhere are read in one pass (manifest/sweep.h), of all files that have some
// of them, up to kFilesTogether. Boxes that nothing is taken from, and all but the first of several
// replicas, are not read.
//
// Some bytes are read more than once, and are then the same each time (manifest/watched_box.h):
// - what files want that are not among those of the first pass: each of them its part, and short
//   runs with what lies between them;
// - what comes into another layout: once in order for the digest, and once where it goes, as its
//   order is another one;
// - a box that several files have as it is, or in equal parts: once for each of them, with its
//   digest each time, unless they are in one pass.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "manifest/file_tasks.h"
#include "manifest/reader.h"
#include "manifest/sweep.h"
#include "manifest/watched_box.h"
#include "plan/plan.h"

namespace shardinit {

// What it is made from must outlive it.
class CheckpointCopy final : public TaskSource {
 public:
  // Throws Error (kUsage) if `folder`, of plan `from`, has no complete checkpoint or not all that
  // `to` stores, and (kDifferent) if its receipts are not those of its manifest.
  CheckpointCopy(const std::string& folder, const Plan& from, const Digest& plan_sha256,
                 const Plan& to);

  // The digest of the manifest that is copied from.
  const Digest& manifest_sha256() const { return manifest_sha256_; }

  // Of boxes of `to`. What Open returns throws Error (kDifferent) if a digest is not the one that
  // was written, of those boxes of `from` that no call before it asked for.
  bool IsEnough(const std::vector<BoxTask>& tasks) override;
  std::function<void()> Open(std::vector<BoxTask>* tasks) override;

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

  // Boxes of one tensor to make, and those of `from` that they have elements of.
  struct Cut {
    std::set<size_t> pieces;  // Their numbers.
    std::vector<BoxTask> tasks;
  };

  // How much of a box of `from` files want.
  struct Wanted {
    explicit Wanted(const FilePiece& wanted)
        : piece(&wanted), missing(ElementCount(wanted.box.shape)) {}
    void Add(const Box& box);

    const FilePiece* piece;
    int64_t missing;      // Elements that none wants.
    std::vector<Box> by;  // That want the others.
  };

  void FindOrigins(const Plan& to);
  const Origin& OriginOf(const BoxTask& task) const;
  // The box that a task is to have as it is, if there is one.
  const FilePiece* FindWhole(const BoxTask& task) const;
  // Tasks of one tensor, together if they are to be made in one pass.
  std::vector<Cut> Separate(const Tensor& stored, std::vector<BoxTask> tasks);
  BoxTask Sweeping(const Tensor& stored, Cut cut, std::vector<Checked>* checked);
  void Require(const Checked& box) const;
  // Who reads piece `number` of a stored tensor in parts, if anyone does.
  std::shared_ptr<WatchedBox>& WatchedAt(const Tensor& stored, size_t number);
  // Piece `number` of a stored tensor. The first time it is also to be compared with its digest.
  std::shared_ptr<WatchedBox> Watch(const Tensor& stored, size_t number, int64_t cell_bytes,
                                    std::vector<BoxTask>* tasks, std::vector<Checked>* checked);
  // All of a stored tensor, out of pieces that are watched.
  BoxElements PartsOf(const Tensor& stored, int64_t cell_bytes, std::vector<BoxTask>* tasks,
                      std::vector<Checked>* checked);

  const std::string folder_;
  const Plan& from_;
  const std::vector<Tensor>& to_;
  const bool is_wanted_again_;  // Several files have equal boxes.
  const CheckpointReader reader_;
  Digest manifest_sha256_;
  std::vector<Origin> origins_;  // Of each tensor of `to`.
  // Of each tensor of `from`, its boxes that are read in parts.
  std::vector<std::vector<std::shared_ptr<WatchedBox>>> watched_;

  // What IsEnough was called with since Open was.
  int64_t files_ = 0;
  std::unordered_map<const FilePiece*, Wanted> wanted_;
  int64_t unfinished_ = 0;  // Of these boxes, those with elements that none wants.
};

}  // namespace shardinit
