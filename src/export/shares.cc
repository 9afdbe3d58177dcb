#include "export/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/json.h"

namespace shardinit {
namespace {

// Returns the number of shares. Files are assigned to shares in turn, and shares to ranks in turn.
// If there are few ranks, each has several shares, so that more jobs than ranks have work. Millions
// of files do not need millions of receipts.
int64_t CountShares(int64_t files, int64_t ranks) {
  constexpr int64_t kEnough = 1024;
  const int64_t for_files = CeilDiv(files, ranks);
  return ranks * std::max<int64_t>(1, std::min(for_files, kEnough / ranks));
}

}  // namespace

ExportParts::ExportParts(const Plan& of, const ExportRequest& asked,
                         std::vector<FileLayout> laid_out)
    : plan(of), request(asked), files(std::move(laid_out)) {
  files_with_elements =
      std::ranges::count_if(files, [](const FileLayout& file) { return !file.boxes.empty(); });
  shares = CountShares(files_with_elements, plan.world_size());
  int64_t next = 0;
  for (const FileLayout& file : files) {
    digests.emplace_back(file.boxes.size());
    crcs.emplace_back(file.boxes.size());
    share.push_back(file.boxes.empty() ? -1 : next++ % shares);
  }
}

std::vector<int64_t> ExportParts::RequestedShares() const {
  std::vector<int64_t> asked;
  if (!request.part) {
    for (int64_t of = 0; of < shares; ++of) {
      if (!request.ranks ||
          std::binary_search(request.ranks->begin(), request.ranks->end(), RankOf(of))) {
        asked.push_back(of);
      }
    }
    return asked;
  }
  std::vector<int64_t> bytes(static_cast<size_t>(shares));
  for (size_t f = 0; f < files.size(); ++f) {
    if (share[f] >= 0) bytes[static_cast<size_t>(share[f])] += files[f].size();
  }
  const std::vector<int64_t> first = CutInParts(std::move(bytes), request.part->count);
  const auto index = static_cast<size_t>(request.part->index);
  for (int64_t of = first[index]; of < first[index + 1]; ++of) asked.push_back(of);
  return asked;
}

std::string ShareReceipt(int64_t share) { return fmt::format("share-{:05}", share); }

nlohmann::json WriteShare(const ExportParts& parts, int64_t share) {
  nlohmann::json receipt = nlohmann::json::array();
  for (size_t f = 0; f < parts.files.size(); ++f) {
    if (parts.share[f] != share) continue;
    nlohmann::json digests = nlohmann::json::array();
    for (const Digest& digest : parts.digests[f]) digests.push_back(ToHex(digest));
    receipt.push_back({{"file", f}, {"digests", digests}, {"crcs", parts.crcs[f]}});
  }
  return receipt;
}

bool ReadShare(const nlohmann::json& receipt, const std::string& path, int64_t share,
               ExportParts* parts, const std::function<bool(size_t file)>& is_there) {
  const auto refuse = [&](const std::string& why) {
    return Error(ExitCode::kRefused, fmt::format("`{}` is damaged{}", path, why), "remove it");
  };
  try {
    if (std::ssize(receipt) != std::count(parts->share.begin(), parts->share.end(), share)) {
      throw refuse("");
    }
    std::set<size_t> seen;
    for (const nlohmann::json& entry : receipt) {
      const size_t f = entry.at("file");
      const auto& digests = entry.at("digests");
      std::vector<uint32_t> crcs = entry.at("crcs");
      if (f >= parts->files.size() || parts->share[f] != share || !seen.insert(f).second ||
          digests.size() != parts->files[f].boxes.size() || crcs.size() != digests.size()) {
        throw refuse("");
      }
      if (!is_there(f)) return false;
      for (size_t b = 0; b < digests.size(); ++b) {
        if (!FromHex(digests[b].get<std::string>(), &parts->digests[f][b])) return false;
      }
      parts->crcs[f] = std::move(crcs);
    }
  } catch (const nlohmann::json::exception& e) {
    throw refuse(fmt::format(": {}", ComplaintOf(e)));
  }
  return true;
}

}  // namespace shardinit
