#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/glob.h"
#include "base/parallel.h"
#include "checkpoint/manifest.h"
#include "checkpoint/signature.h"
#include "export/record.h"
#include "place/place.h"

namespace shardinit {
namespace {

// Returns whether the name begins with a digit in a folder: readers treat it as an array's chunk.
bool IsLikeAChunk(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash != name.npos && name[slash + 1] >= '0' && name[slash + 1] <= '9';
}

// Returns whether a reader of the format would treat the name as a part of the export.
bool IsGlobbed(const std::string& name, const Format& format) {
  const bool is_inner = name.find('/') != name.npos;
  return std::any_of(format.globbed.begin(), format.globbed.end(), [&](std::string_view pattern) {
    return Matches(pattern, name, Stars::kRuns) && (!is_inner || pattern.find('/') != pattern.npos);
  });
}

// Returns whether a reader of the format looks into folders and would find an array in this one, at
// any depth. Readers ignore a chunk outside an array, but a listing may lack the array's own file:
// then a chunk counts as an array. A folder that cannot be read has no files.
bool HoldsArrays(const Place& place, const std::string& folder, const Format& format) try {
  const bool looks_inside = std::ranges::any_of(
      format.globbed, [](std::string_view pattern) { return pattern.find('/') != pattern.npos; });
  if (!looks_inside) return false;
  bool found = false;
  place.List(folder, [&](const PlaceEntry& entry) {
    const std::string name(entry.name);
    const bool may_be_in_array = !place.traits().lists_all && IsLikeAChunk(name);
    found = entry.kind != NameKind::kFolder && (IsGlobbed(name, format) || may_be_in_array);
    return found ? Next::kEnd : Next::kInside;
  });
  return found;
} catch (const Error&) {
  return false;
}

// Finds names that do not belong to the export. They are damage if a reader would treat them as a
// part, and foreign otherwise. Returns the recorded names that are files, not reached by a link.
std::unordered_set<std::string> FindFiles(const Place& place, const Record& record,
                                          VerifyResult* result) {
  std::unordered_set<std::string> recorded, folders, found;
  for (const RecordedFile& file : record.files) {
    recorded.insert(file.path);
    for (size_t i = file.path.find('/'); i != file.path.npos; i = file.path.find('/', i + 1)) {
      folders.insert(file.path.substr(0, i));
    }
  }
  place.List("", [&](const PlaceEntry& entry) {
    const std::string name(entry.name);
    const NameKind kind = entry.kind;
    const bool is_folder = folders.contains(name);
    if (kind == NameKind::kFile && recorded.contains(name)) {
      found.insert(name);
    } else if (kind == NameKind::kLink && (is_folder || recorded.contains(name))) {
      result->findings.Add({name, "", "is a link to elsewhere"});
    } else if (name != kExportName && name != kExportNotes && name != SignatureOf(kExportName) &&
               !(is_folder && kind == NameKind::kFolder)) {
      const bool is_like_a_part =
          IsLikeAChunk(name) || is_folder || recorded.contains(name) ||
          IsGlobbed(name, *record.format) ||
          (kind == NameKind::kFolder && HoldsArrays(place, name, *record.format));
      (is_like_a_part ? result->findings : result->foreign)
          .Add({name, "", "does not belong to the export"});
    }
    return is_folder ? Next::kInside : Next::kName;
  });
  return found;
}

}  // namespace

VerifyResult VerifyExport(const Place& place, int jobs, const VerifyProgress& progress) {
  VerifyResult result;
  std::string text;
  if (const auto wrong = place.Read(kExportName, kManifestLimit, &text); !wrong.empty()) {
    if (wrong == kIsMissing && place.Exists(kExportClaim)) throw UnfinishedExport(place.path());
    result.findings.Add({kExportName, "", std::string(wrong)});
    return result;
  }
  result.statement = text;
  const Record record = ReadRecord(std::exchange(text, {}), place.PathOf(kExportName));
  const std::vector<RecordedFile>& files = record.files;
  const std::unordered_set<std::string> found = FindFiles(place, record, &result);
  int64_t total = 0;
  for (const RecordedFile& file : files) total += file.size;

  FileVerifier verifier(place, std::ssize(files), jobs, total, progress);
  verifier.result = std::move(result);
  ParallelFor(std::ssize(files), verifier.files_at_once(), [&](int64_t i) {
    const RecordedFile& file = files[static_cast<size_t>(i)];
    if (!found.contains(file.path)) return verifier.Find(file.path, "", "is missing");
    FileToVerify wanted = {file.path, file.size, "the record", {}};
    for (const RecordedFile::Part& part : file.parts) {
      wanted.ranges.push_back({part.tensor, part.offset, part.bytes, &part.digest});
    }
    if (verifier.Verify(wanted)) verifier.Count(1, file.boxes, file.size);
  });
  return std::move(verifier.result);
}

}  // namespace shardinit
