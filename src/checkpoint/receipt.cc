#include "checkpoint/receipt.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/comparison.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "graph/stored/view.h"

namespace shardinit {
namespace {
using nlohmann::json;

// Calls `visit` for each source tensor that the tensor's elements come from.
void ForEachSourceOf(const Tensor& tensor,
                     const std::function<void(const std::string& source, const std::string& name,
                                              const SourceTensorPtr& data)>& visit) {
  if (tensor.view() != nullptr) {
    for (const Piece& piece : tensor.view()->pieces) {
      if (piece.source == Piece::kPadding) continue;
      ForEachSourceOf((*tensor.view()->drawn)[static_cast<size_t>(piece.source)], visit);
    }
    return;
  }
  ForEachSource(tensor.distribution(), visit);
  if (tensor.measured() != nullptr) ForEachSourceOf(*tensor.measured(), visit);
}

}  // namespace

namespace {

// Returns the tensors of sources without a pin that the rank's boxes take elements from.
std::map<std::pair<std::string, std::string>, SourceTensorPtr> UnpinnedOf(const Plan& plan,
                                                                          const RankPlan& rank) {
  std::map<std::pair<std::string, std::string>, SourceTensorPtr> unpinned;
  std::set<std::string> pinned;
  for (const SourcePin& pin : plan.graph.sources) {
    if (!pin.digest.empty()) pinned.insert(pin.name);
  }
  if (pinned.size() == plan.graph.sources.size()) return unpinned;
  for (const Shard& shard : rank.shards) {
    ForEachSourceOf(*shard.tensor, [&](const std::string& source, const std::string& name,
                                       const SourceTensorPtr& data) {
      if (pinned.count(source) == 0) unpinned.emplace(std::pair(source, name), data);
    });
  }
  return unpinned;
}

}  // namespace

std::vector<ReadSource> SourcesRead(const Plan& plan, const RankPlan& rank) {
  std::vector<ReadSource> sources;
  for (const auto& [name, data] : UnpinnedOf(plan, rank)) {
    if (data != nullptr) sources.push_back({name.first, name.second, data->Check()});
  }
  return sources;
}

std::string SourceDigests::Add(const Plan& plan, const RankPlan& rank, const Receipt& receipt) {
  for (const ReadSource& read : receipt.sources) {
    const auto [it, is_new] =
        known_.try_emplace({read.source, read.tensor}, rank.rank, read.sha256);
    const auto& [other, sha256] = it->second;
    if (is_new || sha256 == read.sha256) continue;
    return fmt::format("rank {} was made from {} of source {} with SHA-256 {}, but rank {} with {}",
                       rank.rank, Quote(read.tensor), Quote(read.source),
                       ToHex(read.sha256).substr(0, 12), other, ToHex(sha256).substr(0, 12));
  }
  if (UnpinnedOf(plan, rank).empty()) return {};
  // A rank that was copied from another checkpoint lists no sources.
  (receipt.sources.empty() ? untold_ : told_) = rank.rank;
  if (told_ >= 0 && untold_ >= 0) {
    return fmt::format("rank {} was copied, but rank {} was made from sources that may differ",
                       untold_, told_);
  }
  return {};
}

void WriteReceipt(const RankPlan& rank, const Receipt& receipt,
                  const std::function<void(std::string_view)>& append) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Member("format_version", rank.format_version);
  out.Member("rank", rank.rank).Member("coordinate", rank.coordinate);
  out.Member("file", RankFile(rank.rank)).Member("size", receipt.size);
  out.Member("plan_sha256", ToHex(receipt.plan_sha256));
  out.Member("metadata_sha256", ToHex(receipt.metadata_sha256));
  if (!receipt.sources.empty()) {
    out.Key("sources").BeginArray(JsonWriter::kLines);
    for (const ReadSource& read : receipt.sources) {
      out.BeginObject().Member("source", read.source).Member("tensor", read.tensor);
      out.Member("sha256", ToHex(read.sha256)).EndObject();
    }
    out.EndArray();
  }
  out.Key("boxes").BeginArray(JsonWriter::kLines);
  for (size_t i = 0; i < rank.shards.size(); ++i) {
    const Shard& shard = rank.shards[i];
    out.BeginObject().Member("path", shard.tensor->path());
    out.Member("offset", shard.box.offset).Member("shape", shard.box.shape);
    out.Member("dataset", DatasetPath(*shard.tensor, shard.part))
        .Member("file_offset", receipt.offsets[i]);
    out.Member("bytes", shard.bytes()).Member("sha256", ToHex(receipt.digests[i]));
    out.EndObject();
    if (out.size() > (1 << 20)) append(out.Take());
  }
  out.EndArray().EndObject();
  append(out.Finish());
}

std::string WriteReceipt(const RankPlan& rank, const Receipt& receipt) {
  std::string text;
  WriteReceipt(rank, receipt, [&](std::string_view piece) { text += piece; });
  return text;
}

namespace {

// Reads everything except the boxes.
class HeadReader {
 public:
  HeadReader(const std::string& path, const RankPlan& rank) : path_(path), rank_(rank) {}

  Error Refuse(std::string_view why) const {
    return {ExitCode::kRefused, fmt::format("`{}` is not the receipt of rank {} of this plan: {}",
                                            path_, rank_.rank, why)};
  }

  Receipt Read(const json& top) const {
    Receipt receipt;
    if (top.at("rank") != rank_.rank) {
      throw Refuse(fmt::format("it is the receipt of rank {}", top.at("rank").dump()));
    }
    receipt.size = top.at("size");
    if (receipt.size < 0)
      throw Refuse(fmt::format("its `size` is {}, but must not be negative", receipt.size));
    receipt.plan_sha256 = DigestIn(top.at("plan_sha256"));
    receipt.metadata_sha256 = DigestIn(top.at("metadata_sha256"));
    receipt.offsets.reserve(rank_.shards.size());
    receipt.digests.reserve(rank_.shards.size());
    if (!top.contains("sources")) return receipt;
    for (const json& read : top.at("sources")) {
      receipt.sources.push_back({read.at("source").get<std::string>(),
                                 read.at("tensor").get<std::string>(),
                                 DigestIn(read.at("sha256"))});
    }
    return receipt;
  }

 private:
  const std::string& path_;
  const RankPlan& rank_;
};

bool IsPlaceOf(const Shard& shard, int64_t offset, const Receipt& receipt) {
  return offset >= 0 && offset <= receipt.size - shard.bytes();
}

// Moves `text` past the next `key`. Returns false if the key is missing.
bool SkipTo(std::string_view key, std::string_view* text) {
  const size_t at = text->find(key);
  text->remove_prefix(std::min(text->size(), at == text->npos ? at : at + key.size()));
  return at != text->npos;
}

// Reads a receipt that WriteReceipt() wrote. The result for another text is arbitrary, so the
// caller compares. Searches for the two values of a box that the plan does not determine; a
// tensor's name that looks like them misleads it.
std::optional<Receipt> ReadUnchecked(std::string_view text, const std::string& path,
                                     const RankPlan& rank) {
  constexpr std::string_view kBoxes = ",\n \"boxes\": [";
  const size_t head = text.find(kBoxes);
  if (head == text.npos) return {};
  Receipt receipt;
  try {
    receipt =
        HeadReader(path, rank).Read(ParseJson(fmt::format("{}}}", text.substr(0, head)), path));
  } catch (const Error&) {
    return {};
  } catch (const json::exception&) {
    return {};
  }
  text.remove_prefix(head + kBoxes.size());
  for (const Shard& shard : rank.shards) {
    int64_t offset = -1;
    Digest digest;
    if (!SkipTo("\"file_offset\": ", &text)) return {};
    std::from_chars(text.data(), text.data() + text.size(), offset);
    if (!IsPlaceOf(shard, offset, receipt) || !SkipTo("\"sha256\": \"", &text) ||
        !FromHex(text.substr(0, 64), &digest)) {
      return {};
    }
    receipt.offsets.push_back(offset);
    receipt.digests.push_back(digest);
  }
  return receipt;
}

// Returns whether WriteReceipt() writes this text.
bool IsReceiptOf(std::string_view text, const RankPlan& rank, const Receipt& receipt) {
  Comparison comparison(text);
  WriteReceipt(rank, receipt, [&](std::string_view piece) { comparison.Add(piece); });
  return comparison.equal() && comparison.at_end();
}

}  // namespace

Receipt ReadReceipt(std::string_view text, const std::string& path, const RankPlan& rank) {
  const HeadReader head(path, rank);
  Receipt receipt;
  size_t boxes = 0;
  const auto read_box = [&](const json& top, const std::string& key, const json& box) {
    if (key != "boxes") return false;
    if (boxes == 0) receipt = head.Read(top);
    const size_t i = boxes++;
    if (i >= rank.shards.size()) return true;  // ReadReceipt() rejects their number
    const Shard& shard = rank.shards[i];
    const int64_t offset = box.at("file_offset");
    if (box.at("path") != shard.tensor->path() || !IsPlaceOf(shard, offset, receipt)) {
      throw head.Refuse(
          fmt::format("box {} is not the plan's shard of `{}`", i, shard.tensor->path()));
    }
    receipt.offsets.push_back(offset);
    receipt.digests.push_back(DigestIn(box.at("sha256")));
    return true;
  };
  try {
    const json in = ParseJson(text, path, read_box);
    if (boxes == 0) receipt = head.Read(in);
    if (!in.at("boxes").is_array() || boxes != rank.shards.size()) {
      throw head.Refuse(fmt::format("it has {} boxes instead of {}", boxes, rank.shards.size()));
    }
    receipt.sha256 = Sha256Of(text);
    return receipt;
  } catch (const json::exception& e) {
    throw head.Refuse(ComplaintOf(e));
  }
}

std::optional<Receipt> ReadWritten(std::string_view text, const std::string& path,
                                   const RankPlan& rank) {
  std::optional<Receipt> receipt = ReadUnchecked(text, path, rank);
  if (receipt && IsReceiptOf(text, rank, *receipt)) {
    receipt->sha256 = Sha256Of(text);
    return receipt;
  }
  receipt = ReadReceipt(text, path, rank);
  return IsReceiptOf(text, rank, *receipt) ? receipt : std::nullopt;
}

std::optional<Receipt> OwnReceipt(std::string_view text, const std::string& path,
                                  const RankPlan& rank, const Digest& plan_sha256) {
  std::optional<Receipt> receipt;
  try {
    receipt = ReadWritten(text, path, rank);
  } catch (const Error&) {
    return {};
  }
  if (!receipt || receipt->plan_sha256 != plan_sha256) return {};
  return receipt;
}

std::optional<Receipt> FindReceipt(const Place& place, const RankPlan& rank,
                                   const Digest& plan_sha256, bool detached,
                                   const ListedSizes* listed) {
  const std::string name = ReceiptFile(rank.rank);
  std::string text;
  if (!place.Read(name, ReceiptLimit(rank.shards.size()), &text).empty()) return {};
  std::optional<Receipt> receipt = OwnReceipt(text, place.PathOf(name), rank, plan_sha256);
  if (!receipt || detached) return receipt;
  if (listed != nullptr) {
    const auto size = listed->find(rank.rank);
    if (size != listed->end() && size->second == receipt->size) return receipt;
  }
  if (place.SizeOf(RankFile(rank.rank)) != receipt->size) return {};
  return receipt;
}

size_t ReceiptLimit(size_t shards) { return (1 << 20) + shards * 8192; }

}  // namespace shardinit
