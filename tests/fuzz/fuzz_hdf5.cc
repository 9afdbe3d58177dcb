// Damages an HDF5 file and reads it in a child process. The first byte selects the file; each three
// bytes after it are a position and a change there. Whatever HDF5 does, this process must get an
// answer or a refusal.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/file_tasks.h"
#include "formats/hdf5/reader.h"
#include "formats/hdf5/writer.h"
#include "place/place.h"
#include "support/hdf5_once.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

// Returns the bytes of a file with this layout.
std::string BytesOf(const FileLayout& layout) {
  const std::string name = "shardinit-fuzz-seed-" + std::to_string(getpid());
  FileOutline outline = OutlineFile(layout);
  outline.path = name;
  Place::At("/dev/shm")->Begin(outline)->Complete();
  const std::string bytes = ReadFile("/dev/shm/" + name);
  unlink(("/dev/shm/" + name).c_str());
  return bytes;
}

// Returns the files of two ranks, without and with features of the newer format, and an index.
std::vector<std::string> GoodFiles() {
  SetUpHdf5Once();
  InitGraph graph{
      .name = "x",
      .engine = "philox4x32",
      .mesh = {{"a", "b"}, {2, 2}},
      .tensors = {MakeTensor("layers.0.w", DType::bf16, {8, 6}, Normal{0, 1}, {{0}, {1}}),
                  MakeTensor("layers.1.w", DType::f32, {3}, Constant{1}),
                  MakeTensor("top", DType::f64, {}, Constant{0.5})}};
  const Digest digest = Sha256Of("plan");
  const Plan plan = MakePlan(graph);
  graph.tensors[0].Edit().partition.dimensions[0].segments = 2;
  graph.tensors[1].Edit().partition.pins = {{1, {1}}};
  const Plan newer = MakePlan(graph);
  return {BytesOf(hdf5::LayOutRank(plan, PlanRank(plan, 0), digest)),
          BytesOf(hdf5::LayOutRank(newer, PlanRank(newer, 1), digest)),
          BytesOf(hdf5::LayOutIndex("index.h5", plan, digest))};
}

}  // namespace
}  // namespace shardinit

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardinit;
  static const std::vector<std::string> files = GoodFiles();
  static const std::string path = "/dev/shm/shardinit-fuzz-" + std::to_string(getpid()) + ".h5";
  if (size == 0) return 0;
  std::string bytes = files[data[0] % files.size()];
  // A position beyond the end of the file truncates the file instead.
  for (size_t at = 1; at + 3 <= size; at += 3) {
    const size_t place = data[at] | size_t{data[at + 1]} << 8;
    if (place < bytes.size()) {
      bytes[place] = static_cast<char>(bytes[place] ^ data[at + 2]);
    } else {
      bytes.resize(place % (bytes.size() + 1));
    }
  }
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    const std::string text = hdf5::DescribeFile(path, std::chrono::seconds(20));
    if (!nlohmann::json::accept(text)) abort();
    // An undamaged file must be read.
    if (size == 1 && text.find("layers.0.w") == text.npos) abort();
  } catch (const Error& e) {
    if (size == 1 || e.code() != ExitCode::kRefused) abort();
    if (FindBadText(RenderError(e.what(), e.hint()))) abort();
  }
  return 0;
}
