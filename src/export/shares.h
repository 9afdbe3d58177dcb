// Divides the files of an export into shares, which are made and get receipts as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "export/export.h"

namespace shardinit {

// The maximum size of a receipt, in bytes.
inline constexpr size_t kShareReceiptLimit = size_t{1} << 30;

// The files of an export, and the known digests and CRCs of their boxes.
struct ExportParts {
  // The plan and the request must outlive it.
  ExportParts(const Plan& of, const ExportRequest& asked, std::vector<FileLayout> laid_out);

  // Returns the rank that a share is assigned to.
  int64_t RankOf(int64_t of) const { return of % plan.world_size(); }
  // Returns the shares that the request asks for, ascending.
  std::vector<int64_t> RequestedShares() const;

  const Plan& plan;
  const ExportRequest& request;
  std::vector<FileLayout> files;
  std::vector<std::vector<Digest>> digests;
  std::vector<std::vector<uint32_t>> crcs;
  std::vector<int64_t> share;  // the share of each file; -1: no elements
  int64_t files_with_elements = 0, shares = 0;
};

// Returns the name of a share's receipt.
std::string ShareReceipt(int64_t share);

// Returns the digests and CRCs of a share's files.
nlohmann::json WriteShare(const ExportParts& parts, int64_t share);

// Reads the digests and CRCs of a share's files from the receipt at `path`. Returns false if
// `is_there` does for one of them, or if a digest is damaged. Throws Error (kRefused) if `receipt`
// is not such a receipt.
bool ReadShare(const nlohmann::json& receipt, const std::string& path, int64_t share,
               ExportParts* parts, const std::function<bool(size_t file)>& is_there);

}  // namespace shardinit
