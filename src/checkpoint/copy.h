// Takes the boxes of a plan from a folder of tensors of the same plan or of another one: of the
// same model, on another mesh or in another layout.
//
// Of a checkpoint, only bytes with the digests of the receipts are copied: the bytes that are
// hashed are the ones that go into the copy. Other folders record no digests: their files must be
// as they were when the folder was opened, and a box that is read again must have the digest that
// it had. A box that is copied as it is has its digest if the copy has it. Boxes with other borders
// are read in one pass (checkpoint/sweep.h) over all files that have some of them, up to
// kFilesTogether. Boxes that nothing is taken from, and all but the first of several replicas, are
// not read, nor is what no file wants of boxes without a recorded digest.
//
// Some bytes are read more than once, and are then the same each time (checkpoint/sweep.h):
// - bytes of boxes with recorded digests that files after the first pass want: each file reads its
//   part, and short runs with what lies between them;
// - bytes that go into another layout: once in order for the digest, if there is one, and once
//   where they go, as their order is another one. Short runs, as those of transposed tensors, that
//   have no digest are read there alone, and not compared;
// - a box that several files have as it is, or in equal parts: once for each of them, with its
//   digest each time, unless they are in one pass.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "checkpoint/converting.h"
#include "checkpoint/file_tasks.h"
#include "checkpoint/folder.h"
#include "checkpoint/sweep.h"
#include "plan/plan.h"

namespace shardinit {

// The arguments of its constructor must outlive it.
class FolderCopy final : public TaskSource {
 public:
  // Throws Error (kUsage) if `from` is an unfinished checkpoint or has not all that `to` stores,
  // and (kDifferent) if its receipts are not those of its manifest.
  // With `losses`, values go from the convention of the one into that of the other.
  FolderCopy(const TensorFolder& from, const Plan& to, Losses* losses = nullptr);

  const TensorFolder& folder() const { return folder_; }
  const Losses* losses() const { return losses_; }
  // Returns what says what is copied: TensorFolder::Identify().
  const Digest& identity() const { return identity_; }

  // The tasks are boxes of `to`. The function that Open returns checks the digests of those boxes
  // of `from` that no call before asked for, and throws Error (kDifferent) if one is not the digest
  // that was written.
  bool IsEnough(const std::vector<BoxTask>& tasks) override;
  std::function<void()> Open(std::vector<BoxTask>* tasks) override;
  bool wants_long_stretches() const override { return transposes_; }

 private:
  // The source of a tensor of `to`: the same tensor, or elements of several.
  struct Origin {
    const Tensor* same = nullptr;
    // A view of all that `from` stores, if no tensor is the same.
    std::unique_ptr<const Tensor> view = nullptr;
    // The conventions of all that it is a view of; padding has that of the tensor itself.
    std::vector<Convention> conventions = {};
  };

  // A box of the folder, with its digests.
  struct Checked {
    const Tensor* tensor;
    const FilePiece* piece;
    std::shared_ptr<const Digest> found;  // null: it is not hashed
  };

  // Boxes of one tensor to make, and the boxes of `from` that have elements of them.
  struct Cut {
    std::set<size_t> pieces;  // numbers of pieces
    std::vector<BoxTask> tasks;
  };

  // A box of `from`, and how much of it files want.
  struct Wanted {
    explicit Wanted(const FilePiece& wanted)
        : piece(&wanted), missing(ElementCount(wanted.box.shape)) {}
    void Add(const Box& box);

    const FilePiece* piece;
    int64_t missing;      // elements that no file wants
    std::vector<Box> by;  // the boxes that want the others
  };

  void FindOrigins(const Plan& to);
  const Origin& OriginOf(const BoxTask& task) const;
  Conventions ConventionsOf(const Origin& origin, const BoxTask& task) const;
  // Returns the box of the folder that equals the task's, or null.
  const FilePiece* FindWhole(const BoxTask& task) const;
  // Separates the tasks of one tensor; those to make in one pass stay together.
  std::vector<Cut> Separate(const Tensor& stored, std::vector<BoxTask> tasks);
  BoxTask Sweeping(const Tensor& stored, Cut cut, std::vector<Checked>* checked);
  void Require(const Checked& box);
  // Returns who reads piece `number` of a stored tensor in parts; null: nobody does.
  std::shared_ptr<WatchedBox>& WatchedAt(const Tensor& stored, size_t number);
  // Watches piece `number` of a stored tensor. The first time it also adds the task and the check
  // of its digest.
  std::shared_ptr<WatchedBox> Watch(const Tensor& stored, size_t number, int64_t cell_bytes,
                                    std::vector<BoxTask>* tasks, std::vector<Checked>* checked);
  int64_t StoredBytes(const Tensor& stored) const;  // of an element, in the folder
  // Returns all of a stored tensor, read from pieces that are watched in cells of about so many
  // bytes; 0: they are not watched.
  BoxElements PartsOf(const Tensor& stored, int64_t cell_bytes, std::vector<BoxTask>* tasks,
                      std::vector<Checked>* checked);

  const TensorFolder& folder_;
  const Plan& from_;
  const std::vector<Tensor>& to_;
  Losses* const losses_;
  const bool is_wanted_again_;  // Whether several files have equal boxes.
  const Digest identity_;
  std::vector<Origin> origins_;  // the origin of each tensor of `to`
  bool transposes_ = false;      // any of them
  // For each tensor of `from`, its boxes that are read in parts.
  std::vector<std::vector<std::shared_ptr<WatchedBox>>> watched_;
  OpenFiles open_files_;
  std::mutex mutex_;
  std::map<const FilePiece*, Digest> found_;  // of boxes whose digests are not recorded

  // Counts what IsEnough was called with since the last Open.
  int64_t files_ = 0;
  std::unordered_map<const FilePiece*, Wanted> wanted_;
  int64_t unfinished_ = 0;  // Boxes in `wanted_` with elements that none wants.
};

}  // namespace shardinit
