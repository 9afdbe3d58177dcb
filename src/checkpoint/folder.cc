#include "checkpoint/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/text.h"
#include "bucket/tree.h"
#include "bucket/url.h"
#include "checkpoint/bucket.h"
#include "checkpoint/manifest.h"
#include "formats/input.h"
#include "formats/zarr/chunks.h"
#include "report/text.h"
#include "rng/engines.h"
#include "spec/names.h"

namespace shardinit {
namespace {

constexpr size_t kConfigLimit = 16 << 20;

const FormatReader* ReaderOfFile(const std::string& path) {
  constexpr std::string_view kTorch[] = {".bin", ".pt", ".pth", ".ckpt"};
  if (path.ends_with(".safetensors")) return &kSafetensorsReader;
  const bool is_torch = std::any_of(std::begin(kTorch), std::end(kTorch),
                                    [&](std::string_view end) { return path.ends_with(end); });
  return is_torch ? &kTorchReader : nullptr;
}

// Refuses folders of formats that are known and not read.
void RefuseKnown(const std::string& folder) {
  const auto refuse = [&](std::string_view what, std::string_view hint) {
    throw Error(ExitCode::kRefused, fmt::format("`{}` {}", folder, what), std::string(hint));
  };
  for (const std::string& name : NamesIn(folder)) {
    if (name == "manifest.ocdbt") {
      refuse("is a checkpoint of Orbax in OCDBT, which is not read", kOrbaxLine);
    }
    if (name == "zero_to_fp32.py" || name.ends_with("_optim_states.pt")) {
      refuse("is a checkpoint of DeepSpeed, whose parts are not read",
             "run `python zero_to_fp32.py . OUT` in it, which writes the model, in f32, to OUT");
    }
    if (name == "zarr.json" || InputExists(fmt::format("{}/{}/zarr.json", folder, name))) {
      refuse("holds arrays of zarr 3, which are not read", kOrbaxLine);
    }
  }
}

// Returns the folder within `folder` that has the tensors, for folders of several steps or items.
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
    return fmt::format("{}/{}", folder, name);
  }
  for (const char* name : {"default", "items"}) {
    const std::string item = fmt::format("{}/{}", folder, name);
    if (InputExists(item + "/_METADATA") || InputExists(item + "/manifest.ocdbt")) return item;
  }
  return folder;
}

[[noreturn]] void ThrowNone(const std::string& folder) {
  std::vector<std::string_view> kinds;
  for (const FormatReader* reader : FormatReaders()) kinds.push_back(reader->what);
  throw Error(
      ExitCode::kUsage,
      fmt::format("`{}` is not a checkpoint and holds no {}", folder, fmt::join(kinds, " or ")),
      "name a folder that `shardinit gen` or `shardinit export` wrote, or Hugging Face's tools");
}

// Takes the stat of each file below a folder, of those that links lead to, too.
void StatFiles(const std::string& path, std::map<std::string, struct stat>* files) {
  struct stat info;
  if (!IsFolder(path)) {
    if (LookAt(path, &info)) files->emplace(path, info);
    return;
  }
  Walk(path, [&](const std::string& name, NameKind kind) {
    if (kind == NameKind::kFolder) return true;
    const std::string file = path + "/" + name;
    if (LookAt(file, &info)) files->emplace(file, info);
    return false;
  });
}

// Takes the names, sizes and ETags of the objects below a URL.
Digest IdentifyObjects(const std::string& url) {
  Sha256 hash;
  const auto add = [&](const std::string& name, const ObjectInfo& info) {
    hash.Update(fmt::format("{} {} {}\n", name, info.size, info.etag));
  };
  const BucketTree& tree = BucketTree::Of(url);
  if (const ObjectInfo* const object = tree.Find(url)) add(NameOf(url), *object);
  tree.Walk(url, [&](const std::string& name, bool is_folder) {
    if (!is_folder) add(name, *tree.Find(url + "/" + name));
    return true;
  });
  return hash.Finish();
}

// Returns the config.json of a folder as plans have it; empty: there is none.
std::string ConfigIn(const std::string& folder) {
  std::string text;
  const std::string path = folder + "/config.json";
  if (!IsInputFolder(folder) || !ReadInputIfExists(path, kConfigLimit, &text)) return {};
  const nlohmann::json config = ParseJson(text, path);
  return config.is_object() ? config.dump() : "";
}

}  // namespace

bool MayHoldTensors(const std::string& path) {
  return IsBucketUrl(path) ||
         (path != "-" && (IsFolder(path) || (ReaderOfFile(path) != nullptr && Exists(path))));
}

Contents ReadForeign(const std::string& given, const FormatReader** reader) {
  // What there is of an export in a bucket, or of a copy of it, may look whole to its format.
  const auto holds = [&](const char* name) { return InputExists(given + "/" + name); };
  if (holds(kExportClaim) && !holds(kExportName)) throw UnfinishedExport(given);
  const std::string path = IsInputFolder(given) ? ItemIn(given) : given;
  if (!IsInputFolder(path)) {
    *reader = ReaderOfFile(path);
    if (*reader != nullptr && InputExists(path)) return (*reader)->read_file(path);
    if (IsBucketUrl(path)) ThrowNone(path);
    if (const auto wrong = WrongKind(path, "the folder of a checkpoint or an export")) throw *wrong;
  }
  if (!IsBucketUrl(path)) RequireFolder(path);
  RefuseKnown(path);
  std::optional<Contents> contents;
  for (const FormatReader* candidate : FormatReaders()) {
    auto found = candidate->read(path);
    if (!found) continue;
    if (!contents) {
      *reader = candidate;
      contents = std::move(found);
      continue;
    }
    // Hugging Face's tools write, and load, one of these beside the other.
    if (*reader == &kSafetensorsReader && candidate == &kTorchReader) {
      contents->findings.Add({"pytorch_model.bin", "", "is not read: safetensors files are there"});
      continue;
    }
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` holds {} and {}", path, (*reader)->what, candidate->what),
                "move away what is not to be read");
  }
  if (!contents) ThrowNone(path);
  return *std::move(contents);
}

TensorFolder::TensorFolder(const std::string& path)
    : path_(IsBucketUrl(path) ? ParseBucketUrl(path).text() : path), place_(path_) {
  if (IsInputFolder(path_) && InputExists(path_ + "/" + kPlanName)) {
    ReadCheckpoint();
  } else {
    ReadOther();
  }
}

void TensorFolder::ReadCheckpoint() {
  what_ = "rank files";
  plan_ = LoadCheckpointPlan(path_, &plan_sha256_);
  if (IsBucketUrl(path_)) {
    BucketCheckpoint(path_).LoadDevices(&plan_);
  } else {
    LoadDevices(CheckpointFolder(path_), &plan_);
  }
  reader_.emplace(path_, plan_, plan_sha256_);
}

void TensorFolder::ReadOther() {
  if (IsInputFolder(path_)) place_ = ItemIn(path_);
  const std::string& folder = place_;
  if (!IsBucketUrl(folder)) StatFiles(folder, &files_);
  const FormatReader* reader = nullptr;
  Contents contents = ReadForeign(folder, &reader);
  if (!contents.lost.empty()) {
    throw Error(ExitCode::kRefused,
                fmt::format("`{}` is not one whole model: {}", path_, contents.lost));
  }
  what_ = reader->what;
  for (const Finding& finding : contents.findings) {
    warnings_.push_back(fmt::format("{}: {}{}{}", finding.file, finding.tensor,
                                    finding.tensor.empty() ? "" : " ", finding.message));
  }
  if (contents.findings.more() > 0) {
    warnings_.push_back(fmt::format("and {} more", Grouped(contents.findings.more())));
  }
  others_ = std::move(contents.others);
  InitGraph graph;
  graph.engine = kPhilox4x32.name;
  graph.name = NameOf(path_);
  if (!IsModelName(graph.name)) graph.name = "model";
  graph.config = ConfigIn(folder);
  for (auto& [stored, holding] : contents.tensors) {
    std::string name = stored;
    if (!contents.prefix.empty() && name.starts_with(contents.prefix)) {
      name = name.substr(contents.prefix.size());
    }
    AddTensor(name, holding, *reader, &graph.tensors);
  }
  if (graph.tensors.empty()) {
    const auto first = unread_.begin();
    throw Error(
        ExitCode::kUsage,
        fmt::format(
            "`{}` has no tensor that is read{}", path_,
            unread_.empty() ? "" : fmt::format(": {} {}", Quote(first->first), first->second)));
  }
  plan_ = MakePlan(std::move(graph));
}

void TensorFolder::AddTensor(const std::string& name, Holding& holding, const FormatReader& reader,
                             std::vector<Tensor>* tensors) {
  const DTypeInfo* const dtype = FindDType(reader.dtype, holding.dtype);
  if (dtype == nullptr) {
    unread_[name] =
        fmt::format("has the type {}, which shardinit does not have", Quote(holding.dtype));
  } else if (!IsPath(name)) {
    unread_[name] = "has a name that no spec can have";
  } else if (ElementCount(holding.shape) == 0) {
    unread_[name] =
        fmt::format("{}: it is {} {}", kNoElements, dtype->name, InShape(holding.shape));
  } else if (!tensors->empty() && tensors->back().path() == name) {
    unread_[name] = "is there twice";
  } else {
    Tensor tensor;
    tensor.set_path(name);
    tensor.Edit().dtype = dtype->dtype;
    tensor.Edit().shape = holding.shape;
    tensor.Edit().distribution = ValuesOfSource(name);
    tensor.Edit().partition = PartitionSpec(tensor.shape().size());
    tensors->push_back(std::move(tensor));
    pieces_.push_back(std::move(holding.pieces));
  }
}

size_t TensorFolder::PlaceOf(const Tensor& tensor) const {
  return static_cast<size_t>(&tensor - plan_.graph.tensors.data());
}

const Tensor& TensorFolder::WrittenOf(const Tensor& tensor) const {
  return written_ ? *written_of_.at(PlaceOf(tensor)) : tensor;
}

const std::vector<FilePiece>& TensorFolder::PiecesOf(const Tensor& tensor) const {
  if (reader_) return reader_->PiecesOf(WrittenOf(tensor));
  return pieces_.at(PlaceOf(tensor));
}

const std::vector<Digest>* TensorFolder::DigestsOf(const Tensor& tensor) const {
  if (reader_) return &reader_->DigestsOf(WrittenOf(tensor));
  const Widening* const widening = WideningOf(tensor);
  const auto found =
      digests_.find(std::string((widening == nullptr ? tensor : widening->numbers).path()));
  return found == digests_.end() ? nullptr : &found->second;
}

void TensorFolder::TakeDigests(const FindDigest& find) {
  for (const Tensor& tensor : plan_.graph.tensors) {
    const std::vector<FilePiece>& pieces = PiecesOf(tensor);
    std::vector<Digest> digests;
    for (const FilePiece& piece : pieces) {
      const int64_t bytes = ElementCount(piece.box.shape) * InfoOf(tensor.dtype()).bytes;
      if (const Digest* const digest = find(piece, bytes)) digests.push_back(*digest);
    }
    if (digests.size() == pieces.size()) digests_[std::string(tensor.path())] = std::move(digests);
  }
}

BoxElements TensorFolder::ElementsOf(const Tensor& tensor) const {
  const auto elements_of = [](const std::vector<FilePiece>& pieces, const Tensor& stored) {
    return [&pieces, element = InfoOf(stored.dtype()).bytes, whole = WholeOf(stored.shape())](
               int64_t first, int64_t count, void* out) {
      ReadPieces(pieces, element, whole, first, count, out);
    };
  };
  const Widening* const widening = WideningOf(tensor);
  if (widening == nullptr) return elements_of(PiecesOf(tensor), tensor);
  return shardinit::Widen(*widening, elements_of(PiecesOf(tensor), widening->numbers),
                          elements_of(ScalesOf(*widening), widening->scales));
}

Digest TensorFolder::Identify() const {
  if (!reader_) {
    if (IsBucketUrl(place_)) return IdentifyObjects(place_);
    Sha256 hash;
    for (const auto& [file, info] : files_) {
      hash.Update(fmt::format("{} {} {} {} {}\n", file, info.st_ino, info.st_size,
                              info.st_mtim.tv_sec, info.st_mtim.tv_nsec));
    }
    return hash.Finish();
  }
  std::string manifest;
  const std::string file = path_ + "/" + kManifestName;
  if (IsBucketUrl(path_) ? !ReadInputIfExists(file, kManifestLimit, &manifest)
                         : !ReadIfFile(file, kManifestLimit, &manifest).empty()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is unfinished: it has no {}", path_, kManifestName),
                fmt::format("see `shardinit status {}`", path_));
  }
  std::optional<FileEntry> index;
  if (!ClaimedIndex(manifest, &index) || !IsManifestOf(manifest, written_ ? *written_ : plan_,
                                                       plan_sha256_, reader_->receipts(), index)) {
    throw Error(ExitCode::kDifferent,
                fmt::format("`{}` is damaged: {} does not match {}", path_, kManifestName,
                            WhatManifestFollows(manifest, plan_)),
                fmt::format("`shardinit verify {}` says what else is", path_));
  }
  return Sha256Of(manifest);
}

Digest TensorFolder::IdentifyAnywhere() const {
  if (reader_ || IsBucketUrl(place_)) return Identify();
  Sha256 hash;
  for (const auto& [file, info] : files_) {
    hash.Update(fmt::format("{} {} {} {}\n",
                            IsFolder(place_) ? file.substr(place_.size()) : NameOf(file),
                            info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec));
  }
  return hash.Finish();
}

void TensorFolder::RequireUnchanged(const FilePiece& piece) const {
  // An object that is read is the one that was listed.
  if (reader_ || IsBucketUrl(place_)) return;
  struct stat now;
  const auto then = files_.find(piece.file);
  if (then == files_.end() || !LookAt(piece.file, &now) || !AreUnchanged(then->second, now)) {
    ThrowChanged(piece);
  }
}

void TensorFolder::RequireUnchanged() const {
  for (const std::vector<FilePiece>& pieces : pieces_) {
    for (const FilePiece& piece : pieces) RequireUnchanged(piece);
  }
}

void TensorFolder::Replace(Plan plan, const std::map<std::string, std::string>& stored_as) {
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
      written_of.push_back(&WrittenOf(plan_.graph.tensors[places.at(name_of(tensor))]));
    }
    written_of_ = std::move(written_of);
    if (!written_) written_ = std::move(plan_);
    plan_ = std::move(plan);
    return;
  }
  std::vector<std::vector<FilePiece>> pieces;
  for (const Tensor& tensor : plan.graph.tensors) {
    pieces.push_back(std::move(pieces_.at(places.at(name_of(tensor)))));
  }
  pieces_ = std::move(pieces);
  plan_ = std::move(plan);
}

}  // namespace shardinit
