#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/glob.h"
#include "checkpoint/manifest.h"
#include "checkpoint/signature.h"
#include "export/export.h"
#include "export/record.h"

namespace shardinit {
namespace {

// Returns whether a reader of the format would take the name for a part of the export.
bool IsGlobbed(const std::string& name, const Format& format) {
  const bool is_inner = name.find('/') != name.npos;
  return std::any_of(format.globbed.begin(), format.globbed.end(), [&](std::string_view pattern) {
    return Matches(pattern, name, Stars::kRuns) && (!is_inner || pattern.find('/') != pattern.npos);
  });
}

// Returns whether IsGlobbed() is true of something in a folder; a folder that cannot be read has
// nothing.
bool HoldsGlobbed(const std::string& folder, const std::string& name, const Format& format) try {
  bool found = false;
  Walk(folder + "/" + name, [&](const std::string& inner, NameKind) {
    found |= IsGlobbed(name + "/" + inner, format);
    return false;
  });
  return found;
} catch (const Error&) {
  return false;
}

// Finds names that do not belong to the export. They are damage where a reader would take them for
// a part; else they are foreign. Returns
// the names of the record's files that are files and not reached by a link.
std::unordered_set<std::string> FindFiles(const std::string& folder, const Record& record,
                                          VerifyResult* result) {
  std::unordered_set<std::string> recorded, folders, found;
  for (const RecordedFile& file : record.files) {
    recorded.insert(file.path);
    for (size_t i = file.path.find('/'); i != file.path.npos; i = file.path.find('/', i + 1)) {
      folders.insert(file.path.substr(0, i));
    }
  }
  Walk(folder, [&](const std::string& name, NameKind kind) {
    const bool is_folder = folders.contains(name);
    if (kind == NameKind::kFile && recorded.contains(name)) {
      found.insert(name);
    } else if (kind == NameKind::kLink && (is_folder || recorded.contains(name))) {
      result->findings.Add({name, "", "is a link to elsewhere"});
    } else if (name != kExportName && name != SignatureOf(kExportName) &&
               !(is_folder && kind == NameKind::kFolder)) {
      // Readers take what begins with a digit in the folder of an array for a chunk.
      const size_t slash = name.rfind('/');
      const bool is_like_a_chunk =
          slash != name.npos && name[slash + 1] >= '0' && name[slash + 1] <= '9';
      const bool is_like_a_part =
          is_like_a_chunk || is_folder || recorded.contains(name) ||
          IsGlobbed(name, *record.format) ||
          (kind == NameKind::kFolder && HoldsGlobbed(folder, name, *record.format));
      (is_like_a_part ? result->findings : result->foreign)
          .Add({name, "", "does not belong to the export"});
    }
    return is_folder;
  });
  return found;
}

}  // namespace

VerifyResult VerifyExport(const std::string& folder, int jobs, const VerifyProgress& progress) {
  const std::string path_of_record = folder + "/" + kExportName;
  VerifyResult result;
  std::string text;
  if (const auto wrong = ReadIfFile(path_of_record, kManifestLimit, &text); !wrong.empty()) {
    result.findings.Add({kExportName, "", std::string(wrong)});
    return result;
  }
  result.statement = text;
  const Record record = ReadRecord(std::exchange(text, {}), path_of_record);
  const std::vector<RecordedFile>& files = record.files;
  const std::unordered_set<std::string> found = FindFiles(folder, record, &result);
  int64_t total = 0;
  for (const RecordedFile& file : files)
    total += std::max<int64_t>(0, FileSize(folder + "/" + file.path));

  FileVerifier verifier(folder, jobs, total, progress);
  verifier.result = std::move(result);
  for (const RecordedFile& file : files) {
    if (!found.contains(file.path)) {
      verifier.Find(file.path, "", "is missing");
      continue;
    }
    FileToVerify wanted = {file.path, file.size, "the record", {}};
    for (const RecordedFile::Part& part : file.parts) {
      wanted.ranges.push_back({part.tensor, part.offset, part.bytes, &part.digest});
    }
    if (!verifier.Verify(wanted)) continue;
    verifier.result.boxes += file.boxes;
    verifier.result.bytes += file.size;
    ++verifier.result.files;
  }
  return std::move(verifier.result);
}

}  // namespace shardinit
