// Reads which boxes are in which files, as manifest.json or shardinit-export.json lists them. The
// text is not trusted, and no other file is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "plan/plan.h"

namespace shardinit {

struct ListedBox {
  Box box;
  int64_t file;   // the number of the file
  int64_t place;  // the offset in the file; -1 until AddReceipt() finds it
  Digest sha256;
};

struct ListedFile {
  std::string name;  // relative to the folder
  int64_t size;
  Digest receipt = {};                                // of a rank file
  std::vector<std::pair<size_t, size_t>> boxes = {};  // each box's tensor and its number there
};

struct Listing {
  std::string path;         // of the text
  Plan plan = {};           // only the tensors' paths, types and shapes, and the mesh
  std::string format = {};  // of an export; empty for a checkpoint
  Digest plan_sha256 = {};
  std::vector<ListedFile> files = {};
  // By tensor: boxes that tile it, and their replicas, which are equal.
  std::vector<std::vector<ListedBox>> boxes = {};
  std::vector<int64_t> device_ids = {}, device_slices = {};  // by rank; empty: rank r is device r
};

// Throw Error: kRefused, which names `path`; kDifferent if a record does not have its own digest.
Listing ReadManifest(std::string_view text, const std::string& path);
Listing ListExport(std::string_view record, const std::string& path);

// Finds the places of a rank's boxes. Throws Error: kDifferent if the text is not the receipt that
// the manifest lists, kRefused if it does not fit the manifest.
void AddReceipt(int64_t rank, std::string_view text, Listing* listing);

}  // namespace shardinit
