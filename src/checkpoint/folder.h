// Reads a folder or a file of tensors as a plan and the places of its elements. It may be a
// checkpoint, an export, or the output of another tool in any format that is read.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "checkpoint/reader.h"
#include "formats/format.h"
#include "formats/stamps.h"
#include "generate/workers.h"
#include "plan/plan.h"
#include "plan/relayout.h"
#include "quantized/find.h"

namespace shardinit {

// Returns whether the path is a folder, or a file that may hold tensors. Options that take a spec
// accept such a path too.
bool MayHoldTensors(const std::string& path);

// Reads the tensors of a folder or a file, and sets `*reader` to the reader of its format. Throws
// Error: kUsage if it has no tensors or several formats; kRefused if a folder or file cannot be
// read. ChooseModel() explains `part`.
Contents ReadForeign(const std::string& path, const std::string& part, const FormatReader** reader);

// The record of an export may contain a config.json, on its own line that ends before this byte.
inline constexpr size_t kRecordedConfigEnd = size_t{1} << 20;

// Returns the config.json of a folder, or of the record of an export, in the form that plans have;
// empty if it does not exist.
std::string ConfigIn(const std::string& folder);
// A config.json to load as a spec. A local file is read when it is loaded.
struct ConfigFile {
  std::string path;
  std::optional<std::string> text = {};
};
// Returns the same config.json, as it is written; null if it does not exist.
std::optional<ConfigFile> FindConfigIn(const std::string& folder);

// How the reason begins if a tensor is not read because it has no elements.
inline constexpr std::string_view kNoElements = "has no elements";
// How the reason ends if only quantized models have the tensor's type.
inline constexpr std::string_view kQuantized = "which only quantized models have";

class TensorFolder {
 public:
  // Whether to compare copied bytes with the digests in the record of an export. With kUse, throws
  // Error (kDifferent) if a file with elements is missing or has another size.
  enum class Record { kIgnore, kUse };
  // Throws Error: kUsage if the folder has no tensors; kRefused if the files are hostile, damaged,
  // or in a format that is not read. ChooseModel() explains `part`.
  explicit TensorFolder(const std::string& path, const std::string& part = {},
                        Record record = Record::kIgnore);
  TensorFolder(TensorFolder&&) = default;

  const std::string& path() const { return path_; }
  // The folder inside `path`, or the file, that has the tensors.
  const std::string& place() const { return place_; }
  // The kind of files, such as `zarr arrays`.
  std::string_view what() const { return what_; }
  // The tensors as they are stored. Tensors of other tools are ordered by name and not sharded;
  // their values come from the source kSourceName.
  const Plan& plan() const { return plan_; }
  bool is_checkpoint() const { return reader_.has_value(); }
  const Digest& plan_sha256() const { return plan_sha256_; }

  // Return each box of a tensor once, and the recorded digest of each box. The tensor must be in
  // plan().
  const std::vector<FilePiece>& PiecesOf(const Tensor& tensor) const;
  // Null: no digests are recorded.
  const std::vector<Digest>* DigestsOf(const Tensor& tensor) const;

  // Returns a function that reads elements of a whole tensor. The folder must outlive it.
  BoxElements ElementsOf(const Tensor& tensor) const;

  // Returns all elements of a tensor, each a single number.
  std::vector<double> ReadWhole(const Tensor& tensor) const;
  // Throws Error (kDifferent) if a digest of the tensor is recorded and does not match.
  void RequireRecorded(const Tensor& tensor) const;

  // Returns a digest that identifies the contents without reading values: of a checkpoint's
  // manifest, or else of the paths, sizes and times of all files. Throws Error if a checkpoint is
  // unfinished or does not match its manifest.
  Digest Identify() const;
  // Does the same, but is equal on other machines and for copies of the folder that kept its times.
  Digest IdentifyAnywhere() const;
  // Throws Error (kWorld) if the file of a piece has changed since the folder was opened.
  void RequireUnchanged(const FilePiece& piece) const;
  void RequireUnchanged() const;  // all files

  // Sentences about things that a user may not expect.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // The warning about a damaged record of an export, or empty.
  const std::string& record_warning() const { return record_warning_; }
  // The keys of the part that has these tensors; empty: the folder has no parts.
  const std::string& part() const { return part_; }
  // The parts that are not the model, by name. They are not read.
  const std::map<std::string, PartSize>& others() const { return others_; }
  // The `__metadata__` of safetensors files.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Returns the texts of other files that are needed to use a model in safetensors files, by name:
  // see ExtrasIn(). Empty in other formats. Throws Error (kWorld) if one has changed.
  std::map<std::string, std::string> ReadExtras() const;
  // The tensors that are not in the plan, by name, each with the reason.
  const std::map<std::string, std::string>& unread() const { return unread_; }

  // Throws Error (kRefused) if a tensor of unread() matches none of the patterns, because a copy
  // must not lose it silently.
  void RequireAllRead(const std::vector<std::string>& dropped = {}) const;

  // Returns the folder with quantized tensors and their scales replaced by the tensors that they
  // represent, in type `dtype`, except dropped ones: see FindWidenings(). Adds their number to
  // `*count`.
  TensorFolder Widen(DType dtype, const std::function<bool(const std::string& path)>& is_dropped,
                     int64_t* count) &&;
  // Returns how a tensor is computed from its numbers, at PiecesOf(tensor), and other stored
  // tensors; null: it is stored.
  const Widening* WideningOf(const Tensor& tensor) const;
  bool is_widened() const { return !widened_.empty(); }
  // Returns the pieces of a part but kNumbers.
  const std::vector<FilePiece>& PiecesOf(const Widening& widening, size_t part) const;
  // Returns a function that computes elements of the tensor, for which `numbers` reads its numbers.
  BoxElements ElementsOf(const Widening& widening, BoxElements numbers) const;

  // Returns the folder with another plan for the same stored tensors. The plan has the same paths,
  // types and shapes, or `stored_as` maps its paths to the current paths.
  TensorFolder WithPlan(Plan plan, const std::map<std::string, std::string>& stored_as = {}) &&;

  // A tensor that is joined from other tensors, each of which is a box of it.
  struct Joined {
    struct Part {
      std::string name;
      // The part's offset in the tensor: first in the dimensions that the part lacks, then in its
      // own dimensions. Empty: the part is the whole tensor under another name.
      std::vector<int64_t> at = {};
    };
    std::string name;
    Shape shape;
    std::vector<Part> parts;  // all of one type
  };
  // Returns the folder with only these tensors.
  TensorFolder Join(const std::vector<Joined>& joined) &&;

 private:
  void ReadCheckpoint();
  void ReadForeignFolder();
  void ReadRecordedDigests();
  size_t PlaceOf(const Tensor& tensor) const;  // its index in the plan
  // Returns the same tensor in the plan that the checkpoint was written with.
  const Tensor& TensorAsWritten(const Tensor& tensor) const;
  BoxElements ElementsAt(const std::vector<FilePiece>& pieces, const Tensor& stored) const;
  void AddTensor(const std::string& name, TensorInFolder& holding, const FormatReader& reader,
                 std::vector<Tensor>* tensors);

  const std::string path_;
  std::string place_;
  std::string_view what_;
  Plan plan_;
  Digest plan_sha256_{};
  std::optional<CheckpointReader> reader_;      // only for checkpoints
  std::optional<Plan> written_;                 // the checkpoint's plan, if plan_ is another
  std::vector<const Tensor*> written_of_;       // then: its tensors, in the order of plan_
  std::vector<std::vector<FilePiece>> pieces_;  // of other folders, in the order of plan_
  std::map<std::string, std::vector<Digest>> digests_;  // by the path of a tensor
  using SharedPieces = std::shared_ptr<const std::vector<FilePiece>>;
  struct Widened {
    Widening widening;
    std::array<SharedPieces, Widening::kParts> pieces;  // null: the part is absent or kNumbers
  };
  std::map<std::string_view, Widened> widened_;  // by the path of Widening::made
  // Scales are read in small parts, each of which would open its file.
  std::shared_ptr<OpenFiles> open_files_ = std::make_shared<OpenFiles>();
  InputStamps stamps_;
  std::vector<std::string> warnings_;
  std::string record_warning_;
  std::string part_;
  std::map<std::string, PartSize> others_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::string> unread_;
};

}  // namespace shardinit
