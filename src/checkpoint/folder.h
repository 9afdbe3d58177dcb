// A folder of tensors in any format that is read, or a file of them, as a plan and the places of
// its elements: a checkpoint of this tool, its exports, and what other tools write.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "checkpoint/reader.h"
#include "checkpoint/widen.h"
#include "formats/format.h"
#include "formats/stamps.h"
#include "generate/workers.h"
#include "plan/plan.h"
#include "plan/relayout.h"

namespace shardinit {

// Returns whether the path is a folder, or a file that may hold tensors: an option that takes a
// spec takes such a folder, too.
bool MayHoldTensors(const std::string& path);

// Reads the first kind of files that a folder holds, or a file. Throws Error: kUsage if there is
// none, or several kinds, and kRefused for folders and files that cannot be read. `part` is that of
// ChooseModel().
Contents ReadForeign(const std::string& path, const std::string& part, const FormatReader** reader);

// The record of an export may have a config.json, on a line of its own that ends before this byte.
inline constexpr size_t kRecordedConfigEnd = size_t{1} << 20;

// Returns the config.json of a folder, or of the record of an export, as plans have it; empty:
// there is none.
std::string ConfigIn(const std::string& folder);

// How the reason begins for a tensor without elements that it is not read.
inline constexpr std::string_view kNoElements = "has no elements";
// How it ends for a tensor of a type that only quantized models have.
inline constexpr std::string_view kQuantized = "which only quantized models have";

class TensorFolder {
 public:
  // Whether to use the digests in the record of an export, to compare bytes that are copied. If a
  // file with elements is missing then, or has another size, that is an Error (kDifferent).
  enum class Record { kIgnore, kUse };
  // Throws Error: kUsage if there are no tensors, and kRefused if what is there is hostile,
  // damaged, or nothing that is read. `part` is that of ChooseModel().
  explicit TensorFolder(const std::string& path, const std::string& part = {},
                        Record record = Record::kIgnore);
  TensorFolder(TensorFolder&&) = default;

  const std::string& path() const { return path_; }
  // The folder within that one, or the file, that has the tensors.
  const std::string& place() const { return place_; }
  // The kind of files, as in `zarr arrays`.
  std::string_view what() const { return what_; }
  // The tensors as they are stored. Those of other tools stand in the order of their names, are not
  // sharded, and their values are those of the source kSourceName.
  const Plan& plan() const { return plan_; }
  bool is_checkpoint() const { return reader_.has_value(); }
  const Digest& plan_sha256() const { return plan_sha256_; }

  // These have each box of a tensor once, and the digest of each that the folder records. The
  // tensor is one of the plan.
  const std::vector<FilePiece>& PiecesOf(const Tensor& tensor) const;
  // Null: none are known.
  const std::vector<Digest>* DigestsOf(const Tensor& tensor) const;

  // Returns what reads elements of a whole tensor. The folder must outlive it.
  BoxElements ElementsOf(const Tensor& tensor) const;

  // Takes what says what the folder holds, but not its values: a checkpoint's manifest, else all
  // names, places, sizes and times of files. Throws Error if a checkpoint is unfinished or not as
  // its manifest says.
  Digest Identify() const;
  // Does the same, but is equal on other machines and for copies of the folder that kept its times.
  Digest IdentifyAnywhere() const;
  // Throws Error (kWorld) if the file of a piece is not as it was when the folder was opened.
  void RequireUnchanged(const FilePiece& piece) const;
  void RequireUnchanged() const;  // all files

  // Sentences about what is not as a user may expect it.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // The sentence of these about a damaged record of an export; empty: there is none.
  const std::string& record_warning() const { return record_warning_; }
  // The keys of the part that has these tensors; empty: the folder is not divided.
  const std::string& part() const { return part_; }
  // The parts that are not the model and are not read, by name.
  const std::map<std::string, PartSize>& others() const { return others_; }
  // What safetensors files have in `__metadata__`.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Why a tensor is none of the plan's: names of tensors with what is wrong.
  const std::map<std::string, std::string>& unread() const { return unread_; }

  // Throws Error (kRefused) if a tensor is not read and matches none of the patterns: a copy must
  // not lose it in silence.
  void RequireAllRead(const std::vector<std::string>& dropped = {}) const;

  // Returns the folder with tensors of 8 or 4 bits and their scales as the tensors that they stand
  // for, of another type, but none whose names match: FindWidenings(). Adds their number to
  // `*count`.
  TensorFolder Widen(DType dtype, const std::function<bool(const std::string& path)>& is_dropped,
                     int64_t* count) &&;
  // How a tensor is made of others, which are where PiecesOf() says and ScalesOf(); null: it is
  // stored.
  const Widening* WideningOf(const Tensor& tensor) const;
  const std::vector<FilePiece>& ScalesOf(const Widening& widening) const;

  // Returns the folder with another plan of the same tensors, which stay where they are: it has the
  // same paths, types and shapes, or `stored_as` has the paths that its tensors have now.
  TensorFolder WithPlan(Plan plan, const std::map<std::string, std::string>& stored_as = {}) &&;

  // A tensor that is made of others, each of them a box of it.
  struct Joined {
    struct Part {
      std::string name;
      // Where it begins: the indices of the dimensions that it lacks, which come first, then those
      // of its own. Empty: it is the tensor itself under another name.
      std::vector<int64_t> at = {};
    };
    std::string name;
    Shape shape;
    std::vector<Part> parts;  // of one type
  };
  // Returns the folder with these tensors, and no others.
  TensorFolder Join(const std::vector<Joined>& joined) &&;

 private:
  void ReadCheckpoint();
  void ReadOther();
  void ReadRecordedDigests();
  size_t PlaceOf(const Tensor& tensor) const;  // in the plan
  // Returns the tensor of the plan that a checkpoint was written by.
  const Tensor& WrittenOf(const Tensor& tensor) const;
  void RequireRecorded(const Tensor& tensor) const;  // or throws Error (kDifferent)
  void AddTensor(const std::string& name, Holding& holding, const FormatReader& reader,
                 std::vector<Tensor>* tensors);

  const std::string path_;
  std::string place_;
  std::string_view what_;
  Plan plan_;
  Digest plan_sha256_{};
  std::optional<CheckpointReader> reader_;              // of a checkpoint of this tool
  std::optional<Plan> written_;                         // its own plan, once it has another one
  std::vector<const Tensor*> written_of_;               // then, those tensors in the plan's order
  std::vector<std::vector<FilePiece>> pieces_;          // else, in the order of the plan
  std::map<std::string, std::vector<Digest>> digests_;  // by the path of a tensor
  struct Widened {
    Widening widening;
    std::vector<FilePiece> scales;
  };
  std::map<std::string, Widened> widened_;  // by the path of what is made
  InputStamps stamps_;
  std::vector<std::string> warnings_;
  std::string record_warning_;
  std::string part_;
  std::map<std::string, PartSize> others_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::string> unread_;
};

}  // namespace shardinit
