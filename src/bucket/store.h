// Reads and writes the objects of a folder in a bucket with the operations of S3. Each operation is
// retried while that may help. Reports changes that other writers may have made meanwhile, and
// never overwrites them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bucket/credentials.h"
#include "bucket/http.h"
#include "bucket/url.h"

namespace shardinit {

// Metadata is stored with an object, by name in lower case.
using Metadata = std::map<std::string, std::string>;

struct ObjectInfo {
  int64_t size = 0;
  std::string etag = {};
  Metadata metadata = {};
};

enum class Completion {
  kMade,
  kRefused,  // An object of that name exists, or the store asks to start over.
  kGone,     // No such upload: ended, or completed by a call whose response was lost.
};

// How a request is sent.
struct SendOptions {
  size_t limit = size_t{64} << 20;  // bytes of the response
  int attempts = 0;                 // 0: the default
  std::string element = {};         // an element of each successful response
};

// Names are relative to the folder. Thread-safe. Throws Error: kUsage if the store lacks a needed
// feature, else kWorld.
class Store {
 public:
  explicit Store(BucketUrl url);

  const BucketUrl& url() const { return url_; }
  std::string UrlOf(std::string_view name) const { return url_.UrlOf(name); }

  // Creates an object. Returns false, with nothing done, if the name exists. That may be this very
  // object: a response may have been lost.
  bool PutNew(const std::string& name, std::string_view bytes, const Metadata& metadata = {});
  // Return nothing if the object does not exist.
  std::optional<std::string> Get(const std::string& name, size_t limit);
  std::optional<ObjectInfo> Head(const std::string& name);
  // Returns that many bytes of the object. Throws Error (kWorld) unless the object has this ETag.
  std::string GetRange(const std::string& name, const std::string& etag, int64_t offset,
                       int64_t bytes);
  // Calls `visit` with the objects whose names begin with `prefix`, sorted by bytes, until it
  // returns false. Throws Error (kWorld) if the list may be incomplete.
  void List(const std::string& prefix,
            const std::function<bool(const std::string& name, const ObjectInfo& info)>& visit);

  // An object of several parts, numbered from 1, appears as a whole when it is completed.
  std::string BeginUpload(const std::string& name, const Metadata& metadata);
  // Returns the part's ETag; nothing if the upload does not exist: it was completed or ended.
  std::optional<std::string> PutPart(const std::string& name, const std::string& upload, int number,
                                     std::string_view bytes);
  // Even if this does not return kMade, the call may have created the object.
  Completion CompleteUpload(const std::string& name, const std::string& upload,
                            const std::vector<std::string>& etags);
  // Ends an upload and frees its parts. Ignores an upload that does not exist. `attempts` is the
  // number of tries; 0: the default.
  void EndUpload(const std::string& name, const std::string& upload, int attempts = 0);
  void ListUploads(
      const std::function<void(const std::string& name, const std::string& upload)>& visit);

 private:
  Request RequestFor(const std::string& method, const std::string& key) const;
  // Sends until there is a response that a retry would not change.
  Response Send(Request request, const std::string& doing, const SendOptions& options = {});
  [[noreturn]] void Throw(const Response& response, const std::string& doing);
  // Requests a list with `query`, page by page, until it is complete or `visit` returns false.
  // `visit` gets the key of each element `item`, relative to the folder, and the element's text.
  // `next` pairs each element that locates the next page with the query member that requests it.
  // `root` is the list's element. Throws Error (kWorld) unless the pages form one list.
  struct Listing {
    const char* root;
    const char* item;
    std::vector<std::pair<const char*, const char*>> next;
    bool is_ascending = false;  // Each key must be greater than the one before it.
  };
  void ForEachPage(
      const Listing& listing, const std::vector<std::pair<std::string, std::string>>& query,
      const std::string& prefix, const std::string& doing,
      const std::function<bool(const std::string& name, std::string_view item)>& visit);

  const BucketUrl url_;
  Http http_;
  CredentialSource credentials_;
  std::string scheme_, host_, base_;  // `base_` precedes a key in the path.
  int attempts_ = 0;
  std::mutex mutex_;  // guards `host_` and `region_`
  std::string region_;
};

}  // namespace shardinit
