// Runs the fuzz targets without libFuzzer, on the corpus and on mutations of it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#define LLVMFuzzerTestOneInput FuzzSpec
#include "fuzz/fuzz_spec.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput FuzzFiles
#include "fuzz/fuzz_files.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput FuzzFolder
#include "fuzz/fuzz_folder.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput FuzzHdf5
#include "fuzz/fuzz_hdf5.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput FuzzLibrary
#include "fuzz/fuzz_library.cc"
#undef LLVMFuzzerTestOneInput

#define LLVMFuzzerTestOneInput FuzzZarr
#include "fuzz/fuzz_zarr.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput FuzzQuantized
#include "fuzz/fuzz_quantized.cc"
#undef LLVMFuzzerTestOneInput

#include "support/random_plan.h"
#include "support/spec_text.h"

namespace shardinit {
namespace {

constexpr const char* kTokens[] = {"-1",
                                   "0",
                                   "9223372036854775807",
                                   "18446744073709551616",
                                   "1e300",
                                   "\xff",
                                   "\n",
                                   "  ",
                                   "{",
                                   "}",
                                   "[",
                                   "]",
                                   ": ",
                                   "*",
                                   "&a",
                                   "repeat: {i: 3}",
                                   "when: 0",
                                   "{i}",
                                   "of",
                                   "q",
                                   "\"",
                                   "null",
                                   "0.5",
                                   "- ",
                                   "axis",
                                   "mesh_a",
                                   "uniform()",
                                   "i0",
                                   "**"};

std::string Mutated(std::string text, Random& random) {
  for (int64_t n = random.In(1, 4); n > 0; --n) {
    const auto size = static_cast<int64_t>(text.size());
    const auto at = static_cast<size_t>(random.In(0, size));
    const auto length = static_cast<size_t>(random.In(1, 12));
    switch (random.In(0, 4)) {
      case 0:
        text.insert(at, kTokens[random.In(0, std::ssize(kTokens) - 1)]);
        break;
      case 1:
        text.replace(at, std::min(length / 4, text.size() - at),
                     kTokens[random.In(0, std::ssize(kTokens) - 1)]);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(static_cast<size_t>(random.In(0, size)), 5 * length));
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << random.In(0, 7));
        break;
    }
  }
  return text;
}

// Runs a target on the files in a folder of tests/ whose names have this ending.
void Fuzz(const char* seeds_in, int (*target)(const uint8_t*, size_t), int mutations = 300,
          std::string_view end = "") {
  const auto run = [target](const std::string& text) {
    target(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  int64_t seeds = 0;
  const std::string folder = std::string(SHARDINIT_SOURCE_DIR "/tests/") + seeds_in;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().native().ends_with(end)) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    run(text);
    Random random(1);
    for (int i = 0; i < mutations; ++i) run(Mutated(text, random));
    ++seeds;
  }
  EXPECT_GT(seeds, 5);
}

TEST(Fuzz, SpecsSurviveFuzzing) { Fuzz("fuzz/corpus/spec", FuzzSpec); }
TEST(Fuzz, EverySpecKeySurvivesFuzzing) { Fuzz("leaves", FuzzSpec, 300, ".yaml"); }
TEST(Fuzz, LibrarySurvivesFuzzing) { Fuzz("fuzz/corpus/spec", FuzzLibrary); }
TEST(Fuzz, FilesSurviveFuzzing) { Fuzz("fuzz/corpus/files", FuzzFiles); }
// Each input starts a process.
TEST(Fuzz, Hdf5SurvivesFuzzing) { Fuzz("fuzz/corpus/hdf5", FuzzHdf5, 40); }
TEST(Fuzz, FoldersSurviveFuzzing) { Fuzz("fuzz/corpus/folder", FuzzFolder); }
TEST(Fuzz, ZarrSurvivesFuzzing) { Fuzz("fuzz/corpus/zarr", FuzzZarr); }
TEST(Fuzz, QuantizedModelsSurviveFuzzing) { Fuzz("fuzz/corpus/quantized", FuzzQuantized); }

// Returns the seeds in a folder of the corpus.
std::map<std::string, std::string> Seeds(const std::string& folder) {
  std::map<std::string, std::string> seeds;
  for (const auto& entry :
       std::filesystem::directory_iterator(SHARDINIT_SOURCE_DIR "/tests/fuzz/corpus/" + folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return seeds;
}

// Without accepted seeds, readers would be tested only on refused input.
TEST(Fuzz, FolderSeedsAreReadable) {
  for (const auto& [name, text] : Seeds("folder")) {
    const WorkingFolder folder({});
    WriteFiles(".", FilesIn(text));
    int tensors = 0;
    for (const FormatReader* const reader : FormatReaders()) tensors += TryRead(*reader, ".");
    EXPECT_GT(tensors, 0) << name;
  }
}

TEST(Fuzz, ZarrSeedsAreReadable) {
  for (const auto& [name, text] : Seeds("zarr")) {
    const WorkingFolder folder({});
    EXPECT_GT(TryPart(text, "."), 0) << name;
  }
}

TEST(Fuzz, QuantizedSeedsAreWidened) {
  for (const auto& [name, text] : Seeds("quantized")) {
    EXPECT_GT(TryModel(text), 0) << name;
  }
}

}  // namespace
}  // namespace shardinit
