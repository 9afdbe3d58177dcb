// Feeds any bytes to all readers of folders, as files: each is a line `NAME SIZE` and SIZE bytes.
// Readers must refuse the folder, or return tensors that can be read from within its files.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "fuzz/folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardinit;
  static const std::filesystem::path folder =
      "/dev/shm/shardinit-fuzz-folder-" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  WriteFiles(folder, FilesIn({reinterpret_cast<const char*>(data), size}));
  for (const FormatReader* const reader : FormatReaders()) {
    try {
      TryRead(*reader, folder.string());
    } catch (const Error& e) {
      if (FindBadText(RenderError(e.what(), e.hint()))) abort();
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
}
