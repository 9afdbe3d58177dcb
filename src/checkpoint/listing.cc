#include "checkpoint/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/format.h"
#include "formats/record.h"
#include "plan/read.h"
#include "rng/stream.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

using nlohmann::json;

template <typename... T>
[[noreturn]] void RefuseListing(const std::string& path, fmt::format_string<T...> what, T&&... of) {
  throw Error(ExitCode::kRefused, fmt::format("`{}` is not as this tool writes it: {}", path,
                                              fmt::format(what, std::forward<T>(of)...)));
}

// Calls `read`. Its errors name the file.
template <typename Read>
void ReadListed(const std::string& path, const Read& read) try {
  read();
} catch (const RefusedPlan& e) {
  RefuseListing(path, "{}", e.why());
} catch (const json::exception& e) {
  RefuseListing(path, "{}", ComplaintOf(e));
}

int64_t CountIn(const json& in) {
  const int64_t count = in;
  if (count >= 0) return count;
  throw json::type_error::create(302, "a number is negative", &in);
}

std::string TextIn(const json& in, const std::string& path) {
  std::string text = in;
  if (Escape(text) != text) RefuseListing(path, "{} cannot be printed", Quote(text));
  return text;
}

void RequireVersions(const json& in, const std::string& path) {
  const json &format = in.at("format_version"), contract = in.value("contract_version", json(1));
  static_assert(kContractVersion == 1);
  if ((format != kFormatVersion && format != kNewestFormatVersion) || contract != 1) {
    throw UnknownVersion(path, format.dump(), contract.dump());
  }
}

class ListingReader {
 public:
  explicit ListingReader(Listing* to) : to_(*to), tensors_(to->plan.graph.tensors) {}

  void AddRank(const json& in) {
    const int64_t rank = std::ssize(to_.files);
    if (in.at("rank") != rank || in.at("file") != RankFile(rank) ||
        in.at("receipt") != ReceiptFile(rank)) {
      RefuseListing(to_.path, "rank {} has another number or other files", rank);
    }
    to_.files.push_back(
        {RankFile(rank), CountIn(in.at("size")), DigestIn(in.at("receipt_sha256"))});
  }

  // Returns the tensor's number. Only records list a tensor several times, with each of its boxes.
  size_t AddTensor(const json& in) {
    Tensor tensor = ReadTensor(in, to_.path);
    const auto [found, is_new] = numbers_.emplace(tensor.path(), tensors_.size());
    const size_t number = found->second;
    if (is_new) {
      tensor.Edit().partition = PartitionSpec(tensor.shape().size());
      tensors_.push_back(std::move(tensor));
      to_.boxes.emplace_back();
    } else if (to_.format.empty() || tensors_[number].dtype() != tensor.dtype() ||
               tensors_[number].shape() != tensor.shape()) {
      RefuseListing(to_.path, "`{}` is there twice", tensor.path());
    }
    return number;
  }

  void AddBox(size_t number, const json& in, int64_t file, int64_t place) {
    const Tensor& tensor = tensors_[number];
    const ListedBox listed = {
        {in.at("offset"), in.at("shape")}, file, place, DigestIn(in.at("sha256"))};
    const auto& [offset, shape] = listed.box;
    bool fits = offset.size() == tensor.shape().size() && shape.size() == tensor.shape().size() &&
                file >= 0 && file < std::ssize(to_.files);
    for (size_t d = 0; fits && d < shape.size(); ++d) {
      fits = offset[d] >= 0 && offset[d] < tensor.shape()[d] && shape[d] > 0 &&
             shape[d] <= tensor.shape()[d] - offset[d];
    }
    if (!fits || BytesOf({&tensor, listed.box, 0}) >
                     to_.files[static_cast<size_t>(file)].size - std::max<int64_t>(place, 0)) {
      RefuseListing(to_.path, "a box of `{}` is outside the tensor or its file", tensor.path());
    }
    to_.files[static_cast<size_t>(file)].boxes.emplace_back(number, to_.boxes[number].size());
    to_.boxes[number].push_back(listed);
  }

  // Reads what the two kinds of text have in common, after the boxes.
  void Finish(const json& in) {
    InitGraph& graph = to_.plan.graph;
    graph.name = TextIn(in.at("name"), to_.path);
    graph.engine = TextIn(in.at("engine"), to_.path);  // perhaps of a later version
    graph.seed = ReadSeed(in, to_.path);
    to_.plan_sha256 = DigestIn(in.at("plan_sha256"));
    for (size_t t = 0; t < tensors_.size(); ++t) RequireTiled(tensors_[t], to_.boxes[t]);
  }

  // Reads `devices`, which is present if rank r is not on device r.
  void ReadDevices(const json& in) {
    std::set<int64_t> ids;
    for (const json& device : in) {
      const int64_t rank = std::ssize(to_.device_ids), id = device.at("id"),
                    slice = device.at("slice");
      if (rank == std::ssize(to_.files) || device.at("rank") != rank ||
          device.at("coordinate") != to_.plan.graph.mesh.CoordinateOf(rank) || id < 0 ||
          id > INT32_MAX || slice < 0 || slice >= kMaxWorldSize || !ids.insert(id).second) {
        RefuseListing(to_.path, "device {} does not fit the mesh", rank);
      }
      to_.device_ids.push_back(id);
      to_.device_slices.push_back(slice);
    }
    if (ids.size() != to_.files.size()) RefuseListing(to_.path, "its devices do not fit its ranks");
  }

 private:
  void RequireTiled(const Tensor& tensor, const std::vector<ListedBox>& boxes) const {
    TensorInFolder distinct{.file = to_.path, .dtype = {}, .shape = tensor.shape(), .pieces = {}};
    std::map<Shape, const ListedBox*> first;
    for (const ListedBox& each : boxes) {
      const auto [found, is_new] = first.emplace(each.box.offset, &each);
      if (is_new) {
        distinct.pieces.push_back({each.box, to_.files[static_cast<size_t>(each.file)].name, 0});
      } else if (each.box != found->second->box || each.sha256 != found->second->sha256) {
        RefuseListing(to_.path, "replicas of a box of `{}` differ", tensor.path());
      }
    }
    RequireWhole(std::string(tensor.path()), distinct, to_.path);
  }

  Listing& to_;
  std::vector<Tensor>& tensors_;
  std::unordered_map<std::string, size_t> numbers_;
};

}  // namespace

Listing ReadManifest(std::string_view text, const std::string& path) {
  RequireKnownVersion(text, path);
  Listing listing{.path = path};
  ListingReader reader(&listing);
  const auto read = [&](const json&, const std::string& key, const json& element) {
    if (key == "ranks") {
      reader.AddRank(element);
    } else if (key == "tensors") {
      const size_t tensor = reader.AddTensor(element);
      for (const json& box : element.at("shards")) reader.AddBox(tensor, box, box.at("rank"), -1);
    }
    return key == "ranks" || key == "tensors";
  };
  ReadListed(path, [&] {
    const json in = ParseJson(text, path, read);
    RequireVersions(in, path);
    Plan& plan = listing.plan;
    plan.graph.mesh = ReadMesh(in.at("mesh"), path);
    plan.graph.replicas = in.at("replicas") == "full" ? Replicas::kFull : Replicas::kDedupe;
    if (in.at("world_size") != plan.world_size() ||
        std::ssize(listing.files) != plan.world_size() || !in.at("tensors").is_array() ||
        in.at("replicas") != NameOf(plan.graph.replicas)) {
      RefuseListing(path, "its mesh, `world_size`, ranks, `replicas` and tensors do not fit");
    }
    plan.parameters = CountIn(in.at("parameters"));
    plan.bytes = CountIn(in.at("bytes"));
    reader.Finish(in);
    if (in.contains("devices")) reader.ReadDevices(in.at("devices"));
  });
  return listing;
}

Listing ListExport(std::string_view record, const std::string& path) {
  Listing listing{.path = path};
  ListingReader reader(&listing);
  ReadListed(path, [&] {
    ReadRecord(record, path, [&](const json& in) {
      if (in.at("contract_version") != kContractVersion) {
        RefuseListing(path, "this version does not have the contract version {}",
                      in.at("contract_version").dump());
      }
      if (!HasOwnDigest(record)) {
        throw Error(ExitCode::kDifferent,
                    fmt::format("`{}` does not have the digest that its last line gives", path));
      }
      listing.format = in.at("format");
      for (const json& file : in.at("files")) {
        listing.files.push_back({TextIn(file.at("file"), path), file.at("size")});
        for (const json& box : file.at("boxes")) {
          reader.AddBox(reader.AddTensor(box), box, std::ssize(listing.files) - 1,
                        CountIn(box.at("file_offset")));
        }
      }
      reader.Finish(in);
    });
  });
  Plan& plan = listing.plan;
  for (const Tensor& tensor : plan.graph.tensors) {
    if (__builtin_add_overflow(plan.parameters, tensor.numbers(), &plan.parameters) ||
        __builtin_add_overflow(plan.bytes, tensor.bytes(), &plan.bytes)) {
      RefuseListing(path, "it has more than 2^63 - 1 bytes");
    }
  }
  return listing;
}

void AddReceipt(int64_t rank, std::string_view text, Listing* listing) {
  const ListedFile& file = listing->files[static_cast<size_t>(rank)];
  const std::string path =
      listing->path.substr(0, listing->path.rfind('/') + 1) + ReceiptFile(rank);
  if (Sha256Of(text) != file.receipt) {
    throw Error(ExitCode::kDifferent,
                fmt::format("`{}` does not have the digest that {} gives", path, kManifestName));
  }
  size_t next = 0;
  const auto read = [&](const json&, const std::string& key, const json& in) {
    if (key != "boxes") return false;
    if (next == file.boxes.size()) RefuseListing(path, "it has too many boxes");
    const auto& [number, i] = file.boxes[next++];
    const Tensor& tensor = listing->plan.graph.tensors[number];
    ListedBox& listed = listing->boxes[number][i];
    const int64_t bytes = BytesOf({&tensor, listed.box, 0});
    listed.place = CountIn(in.at("file_offset"));
    if (in.at("path") != tensor.path() || in.at("offset") != listed.box.offset ||
        in.at("shape") != listed.box.shape || in.at("bytes") != bytes ||
        in.at("sha256") != ToHex(listed.sha256) || listed.place > file.size - bytes) {
      RefuseListing(path, "it and {} differ on box {}, of `{}`", kManifestName, next,
                    tensor.path());
    }
    return true;
  };
  ReadListed(path, [&] {
    const json in = ParseJson(text, path, read);
    RequireVersions(in, path);
    if (in.at("rank") != rank || in.at("file") != file.name || in.at("size") != file.size ||
        in.at("plan_sha256") != ToHex(listing->plan_sha256) || !in.at("boxes").is_array() ||
        next != file.boxes.size()) {
      RefuseListing(path, "it is not the receipt of rank {} of this checkpoint", rank);
    }
  });
}

}  // namespace shardinit
