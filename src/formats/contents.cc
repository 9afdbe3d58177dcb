#include "formats/contents.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "report/text.h"

namespace shardinit {

void RequireWhole(const std::string& name, const Holding& holding) {
  int64_t count = 0;
  std::vector<const Box*> boxes;
  for (const FilePiece& piece : holding.pieces) {
    count += ElementCount(piece.box.shape);
    boxes.push_back(&piece.box);
  }
  if (const auto twice = FindOverlap(boxes)) {
    throw Error(ExitCode::kRefused,
                fmt::format("{} is in `{}` and `{}`", Quote(name),
                            holding.pieces[twice->first].file, holding.pieces[twice->second].file));
  }
  int64_t whole = 1;
  for (const int64_t extent : holding.shape) {
    if (__builtin_mul_overflow(whole, extent, &whole)) whole = -1;
  }
  if (count != whole) {
    throw Error(ExitCode::kRefused,
                fmt::format("{} is not whole: its boxes have {} of the {} elements of {}",
                            Quote(name), count, whole, InShape(holding.shape)));
  }
}

std::vector<std::string> NamesIn(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (!dir) throw SystemError("read the folder", folder);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace shardinit
