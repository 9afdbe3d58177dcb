#include "bucket/web_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "bucket/signature.h"
#include "bucket/web.h"

namespace shardinit {
namespace {

constexpr std::string_view kIndexEnd = ".index.json";
constexpr int64_t kMostIndexBytes = 64 << 20;
constexpr size_t kMostListedFiles = 10'000;  // each costs a request

// Returns what identifies the version of a file. Throws Error (kUsage) if nothing does.
std::string VersionOf(const Response& response, const std::string& doing) {
  const std::string etag = response.Header("etag");
  if (etag.size() > 2 && !etag.starts_with("W/")) return etag;
  const std::string time = response.Header("last-modified");
  if (!time.empty()) return time;
  throw Usage(fmt::format("cannot {}: the server sends neither a strong ETag nor Last-Modified, so "
                          "changes during the read cannot be detected",
                          doing),
              "download the file, and use the copy");
}

// A folder, or one file, of a web server. Thread-safe.
class WebFolder {
 public:
  // `named` is the file that the user named, as a part of a URL; or empty.
  WebFolder(std::string base, std::string named)
      : base_(std::move(base)), named_(std::move(named)), web_(base_) {}

  // Adds a file. Returns false if the server does not have it.
  bool Probe(const std::string& key, BucketTree::Objects* objects) {
    const std::string doing = fmt::format("look for `{}/{}`", base_, key);
    const WebAnswer answer = web_.GetRange(UrlOf(key), doing, 0, 1, -1);
    const Response& response = answer.response;
    if (response.status == 404 || response.status == 410) return false;
    const bool is_empty = response.status == 416 && response.Header("content-range") == "bytes */0";
    if (!answer.is_range() && !is_empty) {
      throw web_.Failure(response, doing,
                         "use `hf://ORG/MODEL` for a model on the Hub, or `s3://BUCKET/PREFIX` for "
                         "a bucket: these take credentials");
    }
    (*objects)[key] = {.size = answer.file_size, .etag = VersionOf(response, doing)};
    return true;
  }

  std::string Read(const std::string& key, const ObjectInfo& object, int64_t offset,
                   int64_t bytes) {
    if (bytes == 0) return {};
    const std::string doing = fmt::format("read `{}/{}`", base_, key);
    WebAnswer answer = web_.GetRange(UrlOf(key), doing, offset, bytes, object.size);
    if (!answer.is_range()) throw web_.Failure(answer.response, doing);
    if (VersionOf(answer.response, doing) == object.etag) return std::move(answer.response.body);
    throw Error(ExitCode::kWorld, fmt::format("`{}/{}` changed while it was read", base_, key),
                "stop what writes to it, and run the same command again");
  }

  // Adds the files that an index names.
  void AddListed(const std::string& index, BucketTree::Objects* objects) {
    const ObjectInfo object = objects->at(index);
    const std::string url = fmt::format("{}/{}", base_, index);
    if (object.size > kMostIndexBytes) {
      throw Error(ExitCode::kRefused,
                  fmt::format("`{}` is larger than {} bytes", url, kMostIndexBytes));
    }
    const nlohmann::json in = ParseJson(Read(index, object, 0, object.size), url);
    const auto map = in.is_object() ? in.find("weight_map") : in.end();
    // The reader of the index reports other mistakes in it.
    if (!in.is_object() || map == in.end() || !map->is_object()) return;
    std::set<std::string> files;
    for (const nlohmann::json& file : *map) {
      if (file.is_string()) files.insert(file.get<std::string>());
    }
    if (files.size() > kMostListedFiles) {
      throw Error(ExitCode::kRefused, fmt::format("`{}` names {} files, but at most {} are allowed",
                                                  url, files.size(), kMostListedFiles));
    }
    for (const std::string& file : files) {
      RequireSafeName(file, fmt::format("`{}`", url));
      if (!objects->contains(file)) Probe(file, objects);
    }
  }

 private:
  // The user encoded `base_` and `named_`. Other names are not encoded.
  std::string UrlOf(const std::string& key) const {
    return fmt::format("{}/{}", base_, key == named_ ? key : UriEncoded(key, true));
  }

  const std::string base_, named_;
  Web web_;
};

}  // namespace

bool NamesWebFile(std::string_view url) {
  constexpr std::string_view kEnds[] = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", kIndexEnd};
  return url.starts_with("http") && url.size() > OriginOf(url).size() &&
         std::ranges::any_of(kEnds, [&](std::string_view end) { return url.ends_with(end); });
}

BucketTree::Parts ListWeb(const std::string& url) {
  RequireWebUrl(url, "the source", url);
  if (url.find_first_of("?#") != url.npos) {
    throw Usage(fmt::format("`{}` has a query or a fragment, so it names no file", Escape(url)),
                "download the file, and use the copy");
  }
  const bool is_json = url.size() > OriginOf(url).size() && url.ends_with(".json");
  const bool is_file = NamesWebFile(url) && !is_json, names_file = is_file || is_json;
  const size_t slash = names_file ? url.rfind('/') : url.size();
  const std::string named = url.substr(std::min(slash + 1, url.size()));
  BucketTree::Parts parts{url.substr(0, slash), is_file ? named : "", {}, nullptr};
  const auto folder = std::make_shared<WebFolder>(parts.base, named);
  std::set<std::string> wanted = {"config.json", "model.safetensors",
                                  "model.safetensors.index.json"};
  if (is_file) wanted.clear();
  if (names_file) wanted.insert(named);
  for (const std::string& key : wanted) {
    const bool is_found = folder->Probe(key, &parts.objects);
    if (is_found && key.ends_with(kIndexEnd)) folder->AddListed(key, &parts.objects);
  }
  parts.read = [folder](const std::string& key, const ObjectInfo& object, int64_t offset,
                        int64_t bytes) { return folder->Read(key, object, offset, bytes); };
  return parts;
}

}  // namespace shardinit
