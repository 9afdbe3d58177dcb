// Copies the boxes of a plan from a folder of tensors. The folder has the same plan, or a plan of
// the same model on another mesh or in another layout.
//
// If digests are recorded, in receipts or in the record of an export, bytes are copied only if they
// match: the hashed bytes are the bytes that go into the copy. Unless the folder is a checkpoint,
// its files must not change after it is opened. A box without a recorded digest that is read again
// must have the same digest. If a box is copied unchanged, the digest of the copy is its digest.
// Boxes with different borders are read in one pass (checkpoint/sweep.h) for all files that need
// parts of them, up to kFilesTogether. The following are not read: boxes that no file needs,
// replicas except the first, and unneeded elements of boxes without a recorded digest.
//
// Some bytes are read several times, and must be the same each time (checkpoint/sweep.h):
// - Bytes of boxes with recorded digests that files after the first pass need. Each file reads its
//   part, and short runs with the bytes between them.
// - Bytes that go into another layout: once in order for the recorded digest, and once in the order
//   of the copy. Short runs without a recorded digest, as in transposed tensors, are read only in
//   the order of the copy, and not compared.
// - A box that several files copy unchanged or in equal parts: once for each file, checking its
//   digest each time, unless one pass makes these files.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/converting.h"
#include "checkpoint/file_tasks.h"
#include "checkpoint/folder.h"
#include "checkpoint/stored_filler.h"
#include "checkpoint/sweep.h"
#include "plan/plan.h"

namespace shardinit {

// The constructor's arguments must outlive the object.
class FolderCopy final : public TaskSource {
 public:
  // Throws Error: kUsage if `from` is an unfinished checkpoint or lacks elements that `to` stores;
  // kDifferent if its receipts do not match its manifest. If `rescales`, converts values from the
  // conventions of `from` to the conventions of `to`.
  FolderCopy(const TensorFolder& from, const Plan& to, bool rescales = false);

  const TensorFolder& folder() const { return folder_; }
  const ConversionCounts& losses() const { return losses_; }
  // Returns TensorFolder::Identify() of the copied folder.
  const Digest& identity() const { return identity_; }

  // The tasks are boxes of `to`. The function that Open returns checks the digests of boxes of
  // `from` that no earlier call checked. It throws Error (kDifferent) if a digest is not the
  // recorded one.
  bool IsEnough(const std::vector<BoxTask>& tasks) override;
  std::function<void()> Open(std::vector<BoxTask>* tasks) override;
  bool wants_long_stretches() const override { return transposes_; }

 private:
  // Where the elements of a tensor of `to` come from: the same tensor, or several tensors.
  struct Origin {
    const Tensor* same = nullptr;
    // If no tensor is the same: a view of the tensors of `from`.
    std::unique_ptr<const Tensor> view = nullptr;
    // The conventions of the viewed tensors. Padding has the convention of the tensor itself.
    std::vector<Convention> conventions = {};
  };

  // A box of the folder that must be checked.
  struct Checked {
    const Tensor* tensor;
    const FilePiece* piece;
    std::shared_ptr<const Digest> found;  // null: not hashed
  };

  // Boxes of one tensor to make, and the boxes of `from` that share elements with them.
  struct PassTasks {
    std::set<size_t> pieces;  // numbers of pieces
    std::vector<BoxTask> tasks;
  };

  // A box of `from`, and the part of it that files need.
  struct NeededBox {
    explicit NeededBox(const FilePiece& wanted)
        : piece(&wanted), missing(ElementCount(wanted.box.shape)) {}
    void Add(const Box& box);

    const FilePiece* piece;
    int64_t missing;      // elements that no file needs
    std::vector<Box> by;  // the boxes that need the other elements
  };

  void FindOrigins(const Plan& to);
  const Origin& OriginOf(const BoxTask& task) const;
  Conventions ConventionsOf(const Origin& origin, const BoxTask& task) const;
  // Returns the box of the folder that equals the task's box, or null.
  const FilePiece* FindWhole(const BoxTask& task) const;
  // Groups the tasks of one tensor by the pass that makes them.
  std::vector<PassTasks> Separate(const Tensor& stored, std::vector<BoxTask> tasks);
  BoxTask Sweeping(const Tensor& stored, PassTasks cut, std::vector<Checked>* checked);
  void Require(const Checked& box);
  // Returns the watched box of piece `number` of a stored tensor; null: it is not read in parts.
  std::shared_ptr<WatchedBox>& WatchedAt(const Tensor& stored, size_t number);
  // Watches piece `number` of a stored tensor. If a digest is recorded, the first call also adds a
  // task and a check for it.
  std::shared_ptr<WatchedBox> Watch(const Tensor& stored, size_t number, int64_t cell_bytes,
                                    std::vector<BoxTask>* tasks, std::vector<Checked>* checked);
  int64_t StoredBytes(const Tensor& stored) const;  // bytes of an element in the folder
  // Adds a check that the files of a stored tensor have not changed.
  void CheckLater(const Tensor& stored, std::vector<Checked>* checked) const;
  // Returns the elements of a box of a view. They are opened on first use, and take no memory
  // before, if no piece of their sources is watched.
  BoxElements OpenView(const Tensor& view, const Box& box, std::vector<BoxTask>* tasks,
                       std::vector<Checked>* checked);
  // Returns the elements of a stored tensor. Its pieces are watched in cells of about `cell_bytes`
  // bytes; 0: they are not watched.
  ElementsOpener PartsOf(const Tensor& stored, int64_t cell_bytes, std::vector<BoxTask>* tasks,
                         std::vector<Checked>* checked);

  const TensorFolder& folder_;
  const Plan& from_;
  const std::vector<Tensor>& to_;
  const bool rescales_;
  ConversionCounts losses_;
  const bool is_wanted_again_;  // whether several files have equal boxes
  const Digest identity_;
  std::vector<Origin> origins_;  // the origin of each tensor of `to`
  bool transposes_ = false;      // whether any tensor is transposed
  // For each tensor of `from`, its boxes that are read in parts.
  std::vector<std::vector<std::shared_ptr<WatchedBox>>> watched_;
  OpenFiles open_files_;
  std::mutex mutex_;
  std::map<const FilePiece*, Digest> found_;  // digests of boxes without a recorded one

  // What the calls of IsEnough since the last Open asked for.
  int64_t files_ = 0;
  std::unordered_map<const FilePiece*, NeededBox> wanted_;
  int64_t unfinished_ = 0;  // boxes in `wanted_` with elements that no file needs
};

// Returns what determines the values of a copy, apart from its plan. Ranks from other bytes, or in
// another layout or part, thus never share a folder. `layout` is the folder's layout.
std::string ClaimOf(const TensorFolder& from, const std::string& layout = {});

}  // namespace shardinit
