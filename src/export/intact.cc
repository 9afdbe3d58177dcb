#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/glob.h"
#include "base/parallel.h"
#include "bucket/made_once.h"
#include "bucket/store.h"
#include "bucket/url.h"
#include "checkpoint/manifest.h"
#include "checkpoint/signature.h"
#include "export/export.h"
#include "export/record.h"

namespace shardinit {
namespace {

// Readers take what begins with a digit in the folder of an array for a chunk.
bool IsLikeAChunk(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash != name.npos && name[slash + 1] >= '0' && name[slash + 1] <= '9';
}

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
    } else if (name != kExportName && name != kExportNotes && name != SignatureOf(kExportName) &&
               !(is_folder && kind == NameKind::kFolder)) {
      const bool is_like_a_part =
          IsLikeAChunk(name) || is_folder || recorded.contains(name) ||
          IsGlobbed(name, *record.format) ||
          (kind == NameKind::kFolder && HoldsGlobbed(folder, name, *record.format));
      (is_like_a_part ? result->findings : result->foreign)
          .Add({name, "", "does not belong to the export"});
    }
    return is_folder;
  });
  return found;
}

// Finds what is wrong with the objects of an export in a bucket.
class ObjectVerifier {
 public:
  ObjectVerifier(Store* store, const Record& record, const VerifyProgress& progress)
      : store_(*store), record_(record), progress_(progress) {
    for (const RecordedFile& file : record.files) {
      recorded_.insert(file.path);
      total_ += file.size;
    }
  }

  // Finds names that do not belong, as FindFiles() does for a folder.
  void List() {
    store_.List("", [&](const std::string& name, const ObjectInfo&) {
      if (recorded_.contains(name) || name == kExportName || name == SignatureOf(kExportName) ||
          name.starts_with(std::string(kExportNotes) + "/")) {
        return true;
      }
      const bool is_like_a_part = IsLikeAChunk(name) || IsGlobbed(name, *record_.format);
      (is_like_a_part ? result.findings : result.foreign)
          .Add({name, "", "does not belong to the export"});
      return true;
    });
  }

  void Verify(const RecordedFile& file) {
    const std::optional<ObjectInfo> info = store_.Head(file.path);
    if (!info) return Find(file.path, "", "is missing");
    if (info->size != file.size) {
      return Find(file.path, "",
                  fmt::format("has {} bytes, but the record says {}", info->size, file.size));
    }
    Sha256 hash;
    int64_t at = 0;
    size_t next = 0;
    const auto end = [&] { return file.parts[next].offset + file.parts[next].bytes; };
    const auto settle = [&] {
      for (; next < file.parts.size() && at == end(); ++next) {
        const RecordedFile::Part& part = file.parts[next];
        if (std::exchange(hash, Sha256()).Finish() == part.digest) continue;
        Find(file.path, part.tensor,
             fmt::format("has other data than was written (bytes {} to {} of the file)",
                         part.offset, part.offset + part.bytes - 1));
      }
    };
    settle();
    ReadObject(store_, file.path, *info, [&](std::string_view piece) {
      read_ += std::ssize(piece);
      if (progress_) progress_(read_, total_);
      while (!piece.empty()) {
        const std::string_view part =
            piece.substr(0, static_cast<size_t>(std::min(end() - at, std::ssize(piece))));
        hash.Update(part);
        at += std::ssize(part);
        piece.remove_prefix(part.size());
        settle();
      }
    });
    const std::lock_guard lock(mutex_);
    result.boxes += file.boxes;
    result.bytes += file.size;
    ++result.files;
  }

  VerifyResult result;

 private:
  void Find(const std::string& file, const std::string& tensor, std::string message) {
    const std::lock_guard lock(mutex_);
    result.findings.Add({file, tensor, std::move(message)});
  }

  Store& store_;
  const Record& record_;
  const VerifyProgress& progress_;
  std::unordered_set<std::string> recorded_;
  int64_t total_ = 0;
  std::atomic<int64_t> read_{0};
  std::mutex mutex_;
};

VerifyResult VerifyInBucket(const std::string& url, int jobs, const VerifyProgress& progress) {
  Store store(ParseBucketUrl(url));
  const std::optional<std::string> text = store.Get(kExportName, kManifestLimit);
  if (!text) throw UnfinishedExport(url);
  const Record record = ReadRecord(*text, store.UrlOf(kExportName));
  ObjectVerifier verifier(&store, record, progress);
  verifier.List();
  verifier.result.statement = *text;
  ParallelFor(std::ssize(record.files), std::max(jobs, 4),
              [&](int64_t i) { verifier.Verify(record.files[static_cast<size_t>(i)]); });
  return std::move(verifier.result);
}

}  // namespace

VerifyResult VerifyExport(const std::string& folder, int jobs, const VerifyProgress& progress) {
  if (IsBucketUrl(folder)) return VerifyInBucket(folder, jobs, progress);
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
