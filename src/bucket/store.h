// The objects of a folder in a bucket, by the operations of S3. Every one is tried again while that
// may help; what another writer may have done meanwhile is told, and never overwritten.
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

// Metadata is written beside an object's bytes, by name. Names are in lower case.
using Metadata = std::map<std::string, std::string>;

struct ObjectInfo {
  int64_t size = 0;
  std::string etag = {};
  Metadata metadata = {};
};

enum class Completion {
  kMade,
  kRefused,  // There is an object of that name, or the store asks to begin anew.
  kGone,     // There is no such upload: it was ended, or completed by a call whose answer was lost.
};

// How a request is sent.
struct SendOptions {
  size_t limit = size_t{64} << 20;  // bytes of the answer
  int attempts = 0;                 // 0: as many as for all else
  std::string element = {};         // what an answer without failure has
};

// Names are relative to the folder. Safe to use from several threads. Throws Error: kUsage if the
// store cannot do what is needed, else kWorld.
class Store {
 public:
  explicit Store(BucketUrl url);

  const BucketUrl& url() const { return url_; }
  std::string UrlOf(std::string_view name) const { return url_.UrlOf(name); }

  // Makes an object. Returns false, with nothing done, if there is one of that name, be it this
  // one: an answer may have been lost.
  bool PutNew(const std::string& name, std::string_view bytes, const Metadata& metadata = {});
  // Returns nothing if there is no such object.
  std::optional<std::string> Get(const std::string& name, size_t limit);
  std::optional<ObjectInfo> Head(const std::string& name);
  // Returns that many bytes of the object that has this ETag. Throws Error (kWorld) if it has not,
  // or no longer.
  std::string GetRange(const std::string& name, const std::string& etag, int64_t offset,
                       int64_t bytes);
  // Calls `visit` with the objects whose names begin with `prefix`, ascending by their bytes, until
  // it returns false. Throws Error (kWorld) if the list is not known to be whole.
  void List(const std::string& prefix,
            const std::function<bool(const std::string& name, const ObjectInfo& info)>& visit);

  // An object of many parts, numbered from 1, is there when it is completed, whole.
  std::string BeginUpload(const std::string& name, const Metadata& metadata);
  // Returns the part's ETag; nothing if there is no such upload: it was completed or ended.
  std::optional<std::string> PutPart(const std::string& name, const std::string& upload, int number,
                                     std::string_view bytes);
  // Unless it returns kMade, the object may have been made by this call all the same.
  Completion CompleteUpload(const std::string& name, const std::string& upload,
                            const std::vector<std::string>& etags);
  // Ends an upload and gives its parts back. None of that name is no failure. `attempts` is how
  // often it is tried; 0: as often as all else.
  void EndUpload(const std::string& name, const std::string& upload, int attempts = 0);
  void ListUploads(
      const std::function<void(const std::string& name, const std::string& upload)>& visit);

 private:
  Request RequestFor(const std::string& method, const std::string& key) const;
  // Sends until there is an answer that trying again would not change.
  Response Send(Request request, const std::string& doing, const SendOptions& options = {});
  [[noreturn]] void Throw(const Response& response, const std::string& doing);
  // Asks for a list page by page, as `query` says, until it is whole or `visit` returns false.
  // `visit` gets the key of each element `item`, relative to the folder, and the element's text.
  // `next` names the elements that say where the next page begins, and the members of the query
  // that ask for it; `root` is the list's element. Throws Error (kWorld) unless the pages make one
  // list.
  struct Listing {
    const char* root;
    const char* item;
    std::vector<std::pair<const char*, const char*>> next;
    bool is_ascending = false;  // Whether each key must come after the one before it.
  };
  void ForEachPage(
      const Listing& listing, const std::vector<std::pair<std::string, std::string>>& query,
      const std::string& prefix, const std::string& doing,
      const std::function<bool(const std::string& name, std::string_view item)>& visit);

  const BucketUrl url_;
  Http http_;
  CredentialSource credentials_;
  std::string scheme_, host_, base_;  // `base_` is what stands before a key in the path.
  int attempts_ = 0;
  std::mutex mutex_;  // It guards `host_` and `region_`.
  std::string region_;
};

}  // namespace shardinit
