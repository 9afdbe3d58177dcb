#include "checkpoint/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/glob.h"
#include "base/json.h"
#include "base/placeholder.h"
#include "base/text.h"
#include "bucket/url.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "formats/extras.h"
#include "formats/input.h"
#include "formats/ranks.h"
#include "formats/record.h"
#include "formats/weight_map.h"
#include "report/text.h"
#include "rng/engines.h"
#include "spec/file_kind.h"
#include "spec/names.h"

namespace shardinit {
namespace {

constexpr size_t kConfigLimit = 16 << 20;

// Recognizes a file by the end of its name, or else by its first bytes.
const FormatReader* ReaderOfFile(const std::string& path) {
  constexpr std::string_view kTorch[] = {".bin", ".pt", ".pth", ".ckpt"};
  if (path.ends_with(".safetensors") || IsIndex(path, ".safetensors")) return &kSafetensorsReader;
  if (IsIndex(path, ".bin")) return &kTorchReader;
  const bool is_torch = std::any_of(std::begin(kTorch), std::end(kTorch),
                                    [&](std::string_view end) { return path.ends_with(end); });
  if (is_torch) return &kTorchReader;
  const FileKind* kind = nullptr;
  if (!IsUrl(path)) {
    kind = KindOfPath(path);
  } else if (InputSize(path) > 0) {
    std::string begin(static_cast<size_t>(std::min<int64_t>(InputSize(path), 4096)), '\0');
    InputFile(path).Read(0, std::ssize(begin), begin.data());
    kind = KindOfText(path, begin);
  }
  return kind == &kSafetensorsKind ? &kSafetensorsReader
         : kind == &kTorchKind     ? &kTorchReader
                                   : nullptr;
}

// Returns whether a tensor of another tool may have this name. Specs allow fewer names.
bool IsForeignName(std::string_view name) {
  for (size_t i = 0; i < name.size();) {
    const Character c = CharacterAt(name, i);
    if (!c.valid || c.code == '\n' || c.code == '\t' || IsUnsafe(c.code)) return false;
    i += static_cast<size_t>(c.size);
  }
  return !name.empty() && name.size() <= kLongestPath;
}

// Returns the folder inside `folder` that has the tensors, if there are several steps or items.
std::string ItemIn(const std::string& folder) {
  std::string text;
  if (ReadInputIfExists(folder + "/latest_checkpointed_iteration.txt", 64, &text)) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
    const bool is_number =
        !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == text.npos;
    const std::string name = text == "release" ? text
                             : is_number       ? fmt::format("iter_{:07}", std::stoi(text))
                                               : "";
    if (name.empty()) {
      throw Error(ExitCode::kRefused,
                  fmt::format("`{}/latest_checkpointed_iteration.txt` has no iteration, but {}",
                              folder, Quote(text)));
    }
    // verl writes the same file but names its folders differently.
    const std::string step = fmt::format("{}/global_step_{}", folder, text);
    const std::string path = fmt::format("{}/{}", folder, name);
    return is_number && !InputExists(path) && InputExists(step) ? step : path;
  }
  // If there are several items, any of them could be the model.
  std::vector<std::string> items;
  for (const char* name : {"default", "items", "state"}) {
    const std::string item = fmt::format("{}/{}", folder, name);
    if (InputExists(item + "/_METADATA") || InputExists(item + "/manifest.ocdbt"))
      items.push_back(item);
  }
  // NeMo keeps the run's configuration in `context`.
  const std::string weights = folder + "/weights";
  if (InputExists(folder + "/context") && InputExists(weights + "/.metadata")) {
    items.push_back(weights);
  }
  if (items.size() == 1) return items.front();
  return folder;
}

// Returns whether a file next to a model only looks like a model.
bool IsBesideModel(std::string_view name) {
  constexpr std::string_view kPatterns[] = {"optimizer*",   "*_optim_states.pt", "scheduler*",
                                            "scaler*",      "rng_state*",        "random_states*",
                                            "data*.pt",     "training_args*",    "*train_state*",
                                            "extra_state*", "common.pt"};
  return std::ranges::any_of(
      kPatterns, [&](std::string_view pattern) { return Matches(pattern, name, Stars::kRuns); });
}

// Orders `step-9` before `step-10`.
bool ComesBefore(const std::string& a, const std::string& b) {
  const auto key = [](std::string_view name) {
    std::string padded, digits;
    for (const char c : name) {
      const bool is_digit = c >= '0' && c <= '9';
      if (is_digit) digits += c;
      if (!is_digit) padded += std::string(20 - std::min<size_t>(20, digits.size()), '0');
      if (!is_digit) padded += std::exchange(digits, {}) + c;
    }
    return padded + std::string(20 - std::min<size_t>(20, digits.size()), '0') + digits;
  };
  return key(a) < key(b);
}

// The contents of a folder that is not a model: folders that may be models, and files of tensors.
struct Inner {
  std::vector<std::string> folders, files;
};

// Searches a few levels deep, because trainers keep steps, and parts of steps, in folders.
Inner LookWithin(const std::string& folder) {
  constexpr int64_t kMostFolders = 2000, kLevels = 4;
  constexpr std::string_view kSigns[] = {kPlanName,   kExportName,      ".metadata",
                                         "_METADATA", "manifest.ocdbt", "model.weights.h5"};
  std::set<std::string> models, optimizers;
  Inner inner;
  int64_t folders = 0;
  WalkInput(folder, [&](const std::string& name, NameKind kind) {
    if (kind == NameKind::kFolder) {
      return std::ranges::count(name, '/') + 1 < kLevels && ++folders < kMostFolders &&
             name.find("ocdbt.process") == name.npos;
    }
    const size_t slash = name.rfind('/');
    const std::string file = slash == name.npos ? name : name.substr(slash + 1);
    const bool is_tensors = ReaderOfFile(file) != nullptr && !IsBesideModel(file);
    const bool is_sign = std::ranges::find(kSigns, file) != std::end(kSigns);
    if (slash == name.npos) {
      if (is_tensors) inner.files.push_back(folder + "/" + name);
    } else if (is_sign || is_tensors) {
      const std::string path = name.substr(0, slash);
      const bool is_state = IsBesideModel(path.substr(path.rfind('/') + 1));
      (is_state ? optimizers : models).insert(folder + "/" + path);
    }
    return false;
  });
  if (models.empty()) models = std::move(optimizers);
  inner.folders = {models.begin(), models.end()};
  std::ranges::sort(inner.folders, ComesBefore);
  std::ranges::sort(inner.files, ComesBefore);
  return inner;
}

// Rejects a folder whose model is in a folder or file inside it, which the message names.
void RefuseParent(const std::string& folder) {
  // An unfinished copy or export of several processes (base/shared_folder.h) is not a model.
  if (InputExists(folder + "/claim") && InputExists(folder + "/files")) return;
  const Inner inner = LookWithin(folder);
  const auto& names = inner.folders.empty() ? inner.files : inner.folders;
  if (names.empty()) return;
  constexpr size_t kMostNamed = 3;
  // Users mostly want the last steps.
  const size_t first = names.size() - std::min(names.size(), kMostNamed);
  std::string list;
  for (size_t i = first; i < names.size(); ++i) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", Quote(names[i]));
  }
  if (first > 0) list += fmt::format(" and {} before", Grouped(static_cast<int64_t>(first)));
  const std::string hint =
      fmt::format("name {} itself, such as {}", inner.folders.empty() ? "the file" : "the folder",
                  Quote(names.back()));
  if (inner.folders.empty()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is not a checkpoint, and its files do not have the names of a "
                            "model's files: {}",
                            folder, list),
                hint);
  }
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` is not a checkpoint, but contains {}: {}", folder,
                          names.size() == 1 ? "a folder that may be a checkpoint"
                                            : "folders that may be checkpoints",
                          list),
              hint);
}

// Throws an error about a file that was never downloaded if `error` names one, or else `error`.
[[noreturn]] void RethrowWithCause(const Error& error) {
  const std::string_view message = error.what();
  for (size_t begin = 0; (begin = message.find('`', begin)) != message.npos; ++begin) {
    const size_t end = message.find('`', begin + 1);
    if (end == message.npos) break;
    const std::string path(message.substr(begin + 1, end - begin - 1));
    begin = end;
    if (path.find('/') == path.npos && ReaderOfFile(path) == nullptr) continue;
    if (!InputExists(path) || IsInputFolder(path)) continue;
    const InputFile file(path);
    constexpr int64_t kHead = 256;
    std::string head(static_cast<size_t>(std::min(kHead, file.size())), '\0');
    file.Read(0, std::ssize(head), head.data());
    if (const Placeholder* placeholder = FindPlaceholder(head)) {
      throw Error(ExitCode::kRefused, fmt::format("`{}` is {}", path, placeholder->name),
                  fmt::format(fmt::runtime(placeholder->hint), path));
    }
    // For example, `Entry not found`.
    const bool is_text = file.size() < kHead && !head.empty() && head.find('{') == head.npos &&
                         std::ranges::all_of(head, [](char c) { return c >= ' ' || c == '\n'; }) &&
                         !FindBadText(head);
    if (is_text) {
      throw Error(ExitCode::kRefused, fmt::format("`{}` only has the text {}", path, Quote(head)),
                  "download the file again");
    }
  }
  throw error;
}

[[noreturn]] void ThrowNone(const std::string& folder) {
  RefuseParent(folder);
  std::vector<std::string_view> kinds;
  for (const FormatReader* reader : FormatReaders()) kinds.push_back(reader->what);
  const std::string_view last = kinds.back();
  kinds.pop_back();
  throw Error(
      ExitCode::kUsage,
      fmt::format("`{}` is not a checkpoint and contains no {} or {}", folder,
                  fmt::join(kinds, ", "), last),
      "name a folder that `shardinit gen` or `shardinit export` wrote, or Hugging Face's tools");
}

// Returns the config.json in the record of an export; empty if it has none.
std::string RecordedConfig(const std::string& folder) {
  const std::string path = folder + "/" + kExportName;
  if (!InputExists(path) || IsInputFolder(path)) return {};
  const InputFile record(path);
  std::string head(std::min<size_t>(kRecordedConfigEnd, static_cast<size_t>(record.size())), '\0');
  record.Read(0, std::ssize(head), head.data());
  constexpr std::string_view kBegin = "{\n \"export_version\": ", kKey = "\n \"config\": ";
  const size_t at = head.substr(0, head.find("\n \"files\": ")).find(kKey);
  if (!head.starts_with(kBegin) || at == head.npos) return {};
  const size_t begin = at + kKey.size(), end = head.find(",\n", begin);
  return end == head.npos ? "" : head.substr(begin, end - begin);
}

}  // namespace

std::string ConfigIn(const std::string& folder) {
  std::string text, path = folder + "/config.json";
  if (!IsInputFolder(folder)) return {};
  if (!ReadInputIfExists(path, kConfigLimit, &text)) {
    text = RecordedConfig(folder);
    path = folder + "/" + kExportName;
    if (text.empty()) return {};
  }
  const nlohmann::json config = ParseJson(text, path);
  return config.is_object() ? config.dump() : "";
}

std::optional<ConfigFile> FindConfigIn(const std::string& folder) {
  const std::string path = folder + "/config.json";
  if (IsInputFolder(folder) && InputExists(path)) {
    if (!IsUrl(folder)) return ConfigFile{path};
    return ConfigFile{path, ReadInput(path, kConfigLimit)};
  }
  std::string recorded = ConfigIn(folder);
  if (recorded.empty()) return {};
  return ConfigFile{path, std::move(recorded)};
}

bool MayHoldTensors(const std::string& path) {
  return IsUrl(path) ||
         (path != "-" && (IsFolder(path) || (ReaderOfFile(path) != nullptr && Exists(path))));
}

namespace {

Contents ReadAnyFormat(const std::string& given, const std::string& part,
                       const FormatReader** reader) {
  // An unfinished export in a bucket, or a copy of one, may look complete to its format.
  const auto holds = [&](const char* name) { return InputExists(given + "/" + name); };
  if (holds(kExportClaim) && !holds(kExportName)) throw UnfinishedExport(given);
  const std::string path = IsInputFolder(given) ? ItemIn(given) : given;
  if (!IsInputFolder(path)) {
    *reader = ReaderOfFile(path);
    if (*reader != nullptr && InputExists(path)) {
      Contents contents = (*reader)->read_file(path, part);
      CheckIfPart(NameOf(path), &contents);
      RequireAllRanks(path, contents);
      return contents;
    }
    if (IsUrl(path)) ThrowNone(path);
    if (const auto wrong = WrongKind(path, "the folder of a checkpoint or an export")) throw *wrong;
  }
  if (!IsUrl(path)) RequireFolder(path);
  std::optional<Contents> contents;
  for (const FormatReader* candidate : FormatReaders()) {
    auto found = candidate->read(path, part);
    if (!found) continue;
    if (!contents) {
      *reader = candidate;
      contents = std::move(found);
      continue;
    }
    // Hugging Face's tools write both kinds next to each other, and load one of them.
    if (*reader == &kSafetensorsReader && contents->is_usual && candidate == &kTorchReader) {
      contents->findings.Add({"pytorch_model.bin", "", "is not read: safetensors files are there"});
      continue;
    }
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` holds {} and {}", path, (*reader)->what, candidate->what),
                "move the others away, or name the file or the index to read");
  }
  if (!contents) ThrowNone(path);
  RequireAllRanks(path, *contents);
  return *std::move(contents);
}

}  // namespace

Contents ReadForeign(const std::string& path, const std::string& part,
                     const FormatReader** reader) {
  try {
    return ReadAnyFormat(path, part, reader);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kRefused) throw;
    RethrowWithCause(error);
  }
}

TensorFolder::TensorFolder(const std::string& path, const std::string& part, Record record)
    : path_(IsUrl(path) ? NormalUrl(path) : path), place_(path_), part_(part) {
  if (IsInputFolder(path_) && InputExists(path_ + "/" + kPlanName)) {
    if (!part.empty()) {
      throw Error(ExitCode::kUsage, fmt::format("`{}` is a checkpoint, which has no parts", path_),
                  fmt::format("leave out `{}`", kPartOption));
    }
    ReadCheckpoint();
  } else {
    ReadForeignFolder();
    if (record == Record::kUse) ReadRecordedDigests();
  }
}

void TensorFolder::ReadCheckpoint() {
  what_ = "rank files";
  stamps_ = InputStamps(path_);
  plan_ = LoadCheckpointPlan(path_, &plan_sha256_);
  LoadDevices(*Place::At(path_), &plan_);
  reader_.emplace(path_, plan_, plan_sha256_);
}

void TensorFolder::ReadForeignFolder() {
  const std::string given = IsInputFolder(path_) ? ItemIn(path_) : path_;
  // An index represents the files next to it.
  place_ = given.ends_with(".json") ? FolderOf(given) : given;
  const std::string& folder = place_;
  stamps_ = InputStamps(folder);
  const FormatReader* reader = nullptr;
  Contents contents = ReadForeign(given, part_, &reader);
  if (!contents.lost.empty()) {
    throw Error(ExitCode::kRefused,
                fmt::format("`{}` is not one whole model: {}", path_, contents.lost));
  }
  what_ = reader->what;
  for (const Finding& finding : contents.findings) {
    const bool is_all = path_ == finding.file || path_.ends_with("/" + finding.file);
    warnings_.push_back(fmt::format("{}{}{}{}{}", is_all ? "" : finding.file, is_all ? "" : ": ",
                                    finding.tensor, finding.tensor.empty() ? "" : " ",
                                    finding.message));
  }
  if (contents.findings.more() > 0) {
    warnings_.push_back(fmt::format("and {} more", Grouped(contents.findings.more())));
  }
  part_ = std::move(contents.part);
  others_ = std::move(contents.others);
  metadata_ = std::move(contents.metadata);
  InitGraph graph;
  graph.engine = kPhilox4x32.name;
  graph.name = NameOf(path_);
  if (!IsModelName(graph.name)) graph.name = "model";
  graph.config = ConfigIn(folder);
  // Moves each tensor, because a folder may have hundreds of thousands.
  FormPool forms;
  while (!contents.tensors.empty()) {
    auto node = contents.tensors.extract(contents.tensors.begin());
    AddTensor(part_.empty() ? node.key() : node.key().substr(part_.size() + 1), node.mapped(),
              *reader, &graph.tensors);
    if (!graph.tensors.empty()) forms.ShareForm(graph.tensors.back());
  }
  if (graph.tensors.empty()) {
    const auto first = unread_.begin();
    throw Error(
        ExitCode::kUsage,
        fmt::format(
            "`{}` has no readable tensor{}", path_,
            unread_.empty() ? "" : fmt::format(": {} {}", Quote(first->first), first->second)));
  }
  plan_ = MakePlan(std::move(graph));
}

void TensorFolder::AddTensor(const std::string& name, TensorInFolder& holding,
                             const FormatReader& reader, std::vector<Tensor>* tensors) {
  const DTypeInfo* const dtype = FindDType(reader.dtype, holding.dtype);
  if (dtype == nullptr) {
    // The names of types of fewer than 16 bits in safetensors, PyTorch and zarr.
    constexpr std::string_view kNarrow[] = {"F4",     "F6_",    "F8_",  "float4",
                                            "float6", "float8", "int4", "uint4"};
    const bool is_narrow = std::ranges::any_of(
        kNarrow, [&](std::string_view begin) { return holding.dtype.starts_with(begin); });
    unread_[name] = fmt::format("has the type {}, {}", Quote(holding.dtype),
                                is_narrow ? kQuantized : "which shardinit does not support");
  } else if (!IsForeignName(name)) {
    unread_[name] = fmt::format(
        "has a name that is empty, longer than {} bytes, not UTF-8, or has control characters",
        kLongestPath);
  } else if (ElementCount(holding.shape) == 0) {
    unread_[name] =
        fmt::format("{}: it is {} {}", kNoElements, dtype->name, InShape(holding.shape));
  } else if (dtype->numbers > 1 && holding.shape.empty()) {
    unread_[name] =
        fmt::format("is a single element of {}, which has {} numbers", dtype->name, dtype->numbers);
  } else if (!tensors->empty() && tensors->back().path() == name) {
    unread_[name] = "is there twice";
  } else {
    Tensor tensor;
    tensor.set_path(name);
    tensor.Edit().dtype = dtype->dtype;
    tensor.Edit().shape = holding.shape;
    tensor.Edit().distribution = ValuesOfSource();
    tensor.Edit().partition = PartitionSpec(tensor.shape().size());
    tensors->push_back(std::move(tensor));
    pieces_.push_back(std::move(holding.pieces));
  }
}

std::map<std::string, std::string> TensorFolder::ReadExtras() const {
  if (what_ != kSafetensorsReader.what || !IsInputFolder(place_)) return {};
  std::map<std::string, std::string> extras = ExtrasIn(place_, widened_.empty());
  for (const auto& [name, text] : extras) {
    const std::string path = fmt::format("{}/{}", place_, name);
    if (!stamps_.IsUnchanged(path)) ThrowChanged({.box = {}, .file = path, .offset = 0});
  }
  return extras;
}

size_t TensorFolder::PlaceOf(const Tensor& tensor) const {
  return static_cast<size_t>(&tensor - plan_.graph.tensors.data());
}

const Tensor& TensorFolder::TensorAsWritten(const Tensor& tensor) const {
  return written_ ? *written_of_.at(PlaceOf(tensor)) : tensor;
}

const std::vector<FilePiece>& TensorFolder::PiecesOf(const Tensor& tensor) const {
  if (reader_) return reader_->PiecesOf(TensorAsWritten(tensor));
  return pieces_.at(PlaceOf(tensor));
}

const std::vector<Digest>* TensorFolder::DigestsOf(const Tensor& tensor) const {
  if (reader_) return &reader_->DigestsOf(TensorAsWritten(tensor));
  const Widening* const widening = WideningOf(tensor);
  const auto found =
      digests_.find(std::string((widening == nullptr ? tensor : widening->numbers()).path()));
  return found == digests_.end() ? nullptr : &found->second;
}

void TensorFolder::ReadRecordedDigests() {
  const std::string path = fmt::format("{}/{}", place_, kExportName);
  std::string text;
  if (!IsInputFolder(place_) || !ReadInputIfExists(path, kManifestLimit, &text)) return;
  shardinit::Record record;
  try {
    record = ReadRecord(text, path);
  } catch (const Error& e) {
    if (e.code() != ExitCode::kRefused) throw;
    record_warning_ = fmt::format("{}: none of its bytes are compared", e.what());
    warnings_.push_back(record_warning_);
    return;
  }
  std::map<std::pair<std::string, int64_t>, const RecordedFile::Part*> parts;
  for (const RecordedFile& file : record.files) {
    const std::string at = fmt::format("{}/{}", place_, file.path);
    const int64_t size = file.boxes > 0 ? InputSize(at) : file.size;
    if (size != file.size) {
      throw Error(
          ExitCode::kDifferent,
          fmt::format("`{}` is damaged: {} has {} instead of {}", path_, Quote(file.path),
                      Count(size, "byte"), Grouped(file.size)),
          fmt::format(
              "`shardinit verify {}` shows all damage; if it was changed on purpose, remove its {}",
              path_, kExportName));
    }
    for (const RecordedFile::Part& part : file.parts) {
      if (!part.tensor.empty()) parts[{at, part.offset}] = &part;
    }
  }
  for (const Tensor& tensor : plan_.graph.tensors) {
    const std::vector<FilePiece>& pieces = PiecesOf(tensor);
    std::vector<Digest> digests;
    for (const FilePiece& piece : pieces) {
      const auto found = parts.find({piece.file, piece.offset});
      const int64_t bytes = ElementCount(piece.box.shape) * InfoOf(tensor.dtype()).bytes;
      if (found == parts.end() || found->second->bytes != bytes) break;
      digests.push_back(found->second->digest);
    }
    // A tensor has digests only if all its boxes have one.
    if (digests.size() == pieces.size()) digests_[std::string(tensor.path())] = std::move(digests);
  }
}

BoxElements TensorFolder::ElementsAt(const std::vector<FilePiece>& pieces,
                                     const Tensor& stored) const {
  return [&pieces, element = InfoOf(stored.dtype()).bytes, whole = WholeOf(stored.shape()),
          files = open_files_](int64_t first, int64_t count, void* out) {
    ReadPieces(pieces, element, whole, first, count, out, files.get());
  };
}

BoxElements TensorFolder::ElementsOf(const Tensor& tensor) const {
  const Widening* const widening = WideningOf(tensor);
  const Tensor& stored = widening == nullptr ? tensor : widening->numbers();
  BoxElements elements = ElementsAt(PiecesOf(tensor), stored);
  return widening == nullptr ? elements : ElementsOf(*widening, std::move(elements));
}

Digest TensorFolder::Identify() const {
  if (!reader_) return stamps_.Identify();
  std::string manifest;
  if (!Place::At(path_)->Read(kManifestName, kManifestLimit, &manifest).empty()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is unfinished: it has no {}", path_, kManifestName),
                fmt::format("see `shardinit status {}`", path_));
  }
  std::optional<FileEntry> index;
  if (!ClaimedIndex(manifest, &index) || !IsManifestOf(manifest, written_ ? *written_ : plan_,
                                                       plan_sha256_, reader_->receipts(), index)) {
    throw Error(ExitCode::kDifferent,
                fmt::format("`{}` is damaged: {} does not match {}", path_, kManifestName,
                            ManifestInputs(manifest, plan_)),
                fmt::format("`shardinit verify {}` shows all damage", path_));
  }
  return Sha256Of(manifest);
}

Digest TensorFolder::IdentifyAnywhere() const {
  return reader_ ? Identify() : stamps_.IdentifyAnywhere();
}

void TensorFolder::RequireUnchanged(const FilePiece& piece) const {
  if (!reader_ && !stamps_.IsUnchanged(piece.file)) ThrowChanged(piece);
}

void TensorFolder::RequireUnchanged() const {
  std::set<std::string_view> compared;
  for (const Tensor& tensor : plan_.graph.tensors) {
    for (const FilePiece& piece : PiecesOf(tensor)) {
      if (!compared.insert(piece.file).second) continue;
      if (!stamps_.IsUnchanged(piece.file)) ThrowChanged(piece);
    }
  }
}

TensorFolder TensorFolder::Join(const std::vector<Joined>& joined) && {
  std::map<std::string_view, const Tensor*> there;
  for (const Tensor& tensor : plan_.graph.tensors) there.emplace(tensor.path(), &tensor);
  InitGraph graph = plan_.graph;
  graph.tensors.clear();
  std::map<std::string, std::string> stored_as;
  std::vector<std::vector<FilePiece>> pieces;
  std::map<std::string, std::vector<Digest>> digests;
  std::map<std::string_view, Widened> widened;
  for (const Joined& of : joined) {
    Tensor tensor = *there.at(of.parts.front().name);
    tensor.set_path(of.name);
    tensor.Edit().shape = of.shape;
    tensor.Edit().partition = PartitionSpec(of.shape.size());
    tensor.Edit().distribution = ValuesOfSource();
    graph.tensors.push_back(std::move(tensor));
    stored_as[of.name] = of.parts.front().name;
    if (reader_) continue;
    std::vector<FilePiece>& all = pieces.emplace_back();
    std::string recorded_as = of.name;
    for (const Joined::Part& part : of.parts) {
      for (FilePiece piece : PiecesOf(*there.at(part.name))) {
        if (!part.at.empty()) {
          const size_t before = part.at.size() - piece.box.shape.size();
          piece.box.shape.insert(piece.box.shape.begin(), before, 1);
          piece.box.offset.insert(piece.box.offset.begin(), before, 0);
          for (size_t d = 0; d < part.at.size(); ++d) piece.box.offset[d] += part.at[d];
        }
        all.push_back(std::move(piece));
      }
      // A widened tensor has the digests of its numbers, under their name.
      std::string recorded = part.name;
      if (auto found = widened_.find(part.name); found != widened_.end()) {
        if (!part.at.empty()) {
          throw Usage(fmt::format("`{}` is quantized and a part of `{}`, which cannot be joined in "
                                  "the same run",
                                  part.name, of.name),
                      "convert the folder without `--spec` first, and the result with it");
        }
        recorded = recorded_as = found->second.widening.numbers().path();
        Widened moved = std::move(found->second);
        widened_.erase(found);  // its key is the text of the path
        moved.widening.made.set_path(of.name);
        const std::string_view path = moved.widening.made.path();
        widened.emplace(path, std::move(moved));
      }
      if (const auto found = digests_.find(recorded); found != digests_.end()) {
        std::vector<Digest>& known = digests[recorded_as];
        known.insert(known.end(), found->second.begin(), found->second.end());
      }
    }
    // A joined tensor has digests only if all its parts have them.
    if (digests[recorded_as].size() != all.size()) digests.erase(recorded_as);
  }
  Plan plan = MakePlan(std::move(graph));
  if (reader_) return std::move(*this).WithPlan(std::move(plan), stored_as);
  pieces_ = std::move(pieces);
  digests_ = std::move(digests);
  widened_ = std::move(widened);
  plan_ = std::move(plan);
  return std::move(*this);
}

TensorFolder TensorFolder::WithPlan(Plan plan,
                                    const std::map<std::string, std::string>& stored_as) && {
  const auto name_of = [&](const Tensor& tensor) -> std::string_view {
    const auto found = stored_as.find(std::string(tensor.path()));
    return found == stored_as.end() ? tensor.path() : std::string_view(found->second);
  };
  std::map<std::string_view, size_t> places;
  for (size_t i = 0; i < plan_.graph.tensors.size(); ++i) {
    places.emplace(plan_.graph.tensors[i].path(), i);
  }
  if (reader_) {
    std::vector<const Tensor*> written_of;
    for (const Tensor& tensor : plan.graph.tensors) {
      written_of.push_back(&TensorAsWritten(plan_.graph.tensors[places.at(name_of(tensor))]));
    }
    written_of_ = std::move(written_of);
    if (!written_) written_ = std::move(plan_);
    plan_ = std::move(plan);
    return std::move(*this);
  }
  std::vector<std::vector<FilePiece>> pieces;
  for (const Tensor& tensor : plan.graph.tensors) {
    pieces.push_back(std::move(pieces_.at(places.at(name_of(tensor)))));
  }
  pieces_ = std::move(pieces);
  plan_ = std::move(plan);
  return std::move(*this);
}

void TensorFolder::RequireAllRead(const std::vector<std::string>& dropped) const {
  for (const auto& [name, why] : unread_) {
    if (MatchesAny(dropped, name)) continue;
    throw Error(ExitCode::kRefused,
                fmt::format("cannot copy {} of `{}`: it {}", Quote(name), path_, why),
                why.ends_with(kQuantized) ? "dequantize the model with the library that wrote it; "
                                            "the other tensors are useless without this one"
                                          : "`shardinit convert` leaves it out with `--drop`");
  }
}

}  // namespace shardinit
