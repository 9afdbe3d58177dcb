#include "bucket/made_once.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <future>
#include <optional>

namespace shardinit {

void PutClaim(Store& store, const std::string& name, std::string_view text,
              const Metadata& metadata) {
  // The second call must fail, whoever created the object.
  if (!store.PutNew(name, text, metadata) || !store.PutNew(name, text, metadata)) return;
  throw Error(ExitCode::kUsage,
              fmt::format("the store of `{}` ignores the condition `If-None-Match: *`: two runs "
                          "could mix their files there",
                          store.url().text()),
              "write to a local folder, and copy that with the store's own tool");
}

void RequireConditionalUploads(Store& store, const std::string& name, std::string_view text,
                               const Metadata& metadata) {
  for (int attempt = 0; attempt < kTriesAmongWriters; ++attempt) {
    // If this were completed, the claim would replace itself.
    const std::string upload = store.BeginUpload(name, metadata);
    const std::optional<std::string> etag = store.PutPart(name, upload, 1, text);
    const Completion completion =
        etag ? store.CompleteUpload(name, upload, {*etag}) : Completion::kGone;
    if (completion == Completion::kRefused) return store.EndUpload(name, upload);
    // An upload that is gone proves nothing: another writer ended it, or the response that it was
    // completed got lost.
    if (completion == Completion::kGone) continue;
    throw Error(ExitCode::kUsage,
                fmt::format("the store of `{}` ignores the condition `If-None-Match: *` when an "
                            "upload of parts is completed: two runs could mix their files there",
                            store.url().text()),
                "write to a local folder, and copy that with the store's own tool");
  }
  throw EndedByOthers(store.url().text());
}

Error EndedByOthers(const std::string& path) {
  return {ExitCode::kWorld, fmt::format("another process keeps aborting uploads to `{}`", path),
          "stop that process, and run the same command again"};
}

void PutText(Store& store, const std::string& name, std::string_view text) {
  for (int attempt = 0; attempt < kTriesAmongWriters; ++attempt) {
    if (store.PutNew(name, text)) return;
    const std::optional<std::string> present = store.Get(name, text.size() + (1 << 20));
    if (present && *present == text) return;
    if (!present) continue;  // It was removed meanwhile.
    throw Error(ExitCode::kConflict,
                fmt::format("`{}` already exists with different content", store.UrlOf(name)),
                "objects are never replaced: remove it with the store's own tool if it is wrong, "
                "and run the same command again");
  }
  throw Error(ExitCode::kWorld,
              fmt::format("another process keeps removing `{}`", store.UrlOf(name)));
}

void ReadObject(Store& store, const std::string& name, const ObjectInfo& info, int64_t offset,
                int64_t bytes, int at_once,
                const std::function<void(std::string_view piece)>& visit) {
  static constexpr int64_t kPiece = 8 << 20;
  const int64_t end = offset + bytes;
  if (end > info.size) {
    throw Error(ExitCode::kWorld, fmt::format("`{}` ends before byte {}", store.UrlOf(name), end),
                "do not change it while it is read");
  }
  const auto read = [&store, &name, &info, end](int64_t from) {
    return store.GetRange(name, info.etag, from, std::min(kPiece, end - from));
  };
  std::deque<std::future<std::string>> ahead;
  int64_t asked = 0;
  for (int64_t at = offset; at < end; at += kPiece) {
    std::string piece;
    if (ahead.empty()) {
      piece = read(at);
      asked = at + kPiece;
    } else {
      piece = ahead.front().get();
      ahead.pop_front();
    }
    for (; asked < end && std::ssize(ahead) + 1 < at_once; asked += kPiece) {
      ahead.push_back(std::async(std::launch::async, read, asked));
    }
    visit(piece);
  }
}

}  // namespace shardinit
