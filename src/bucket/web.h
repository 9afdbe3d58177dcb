// Reads files of web servers: follows redirects and repeats requests while that may help.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "bucket/http.h"

namespace shardinit {

inline constexpr int64_t kMostFileBytes = int64_t{1} << 60;

struct WebAnswer {
  Response response = {};
  Response home = {};     // status and headers from the server that was asked first
  std::string url = {};   // of `response`
  int64_t file_size = 0;  // of GetRange() with status 206

  bool is_range() const { return response.status == 206; }
};

// Thread-safe. `doing` is an action for messages, such as "read `https://host/x`".
class Web {
 public:
  // `home` is a URL. Its server gets the token, unless the token is empty. No other server does.
  // Throws Error (kUsage) if requests to this URL would leave this machine without encryption.
  explicit Web(const std::string& home, std::string token = {});

  // Returns the response that a retry would not change, which may be an error. Throws Error
  // (kWorld) if no response arrives.
  WebAnswer Get(const std::string& url, const std::string& doing, size_t limit,
                const std::string& range = {});
  // Returns these bytes, or an error. Throws Error: kUsage if the server ignores ranges, kWorld if
  // it sends other bytes. `size` is the size of the file; -1: not known.
  WebAnswer GetRange(const std::string& url, const std::string& doing, int64_t offset,
                     int64_t bytes, int64_t size);
  // Returns the error for a response that is not the wanted one.
  Error Failure(const Response& response, const std::string& doing, const std::string& hint = {});
  // Returns a text from a server in printable form, without the token.
  std::string Printable(std::string_view text) const;

 private:
  WebAnswer Follow(const std::string& url, const std::string& doing, size_t limit,
                   const std::string& range);

  Http http_;
  const std::string origin_, token_;
};

// Returns the scheme, host and port of a URL.
std::string OriginOf(std::string_view url);

// Throws Error (kUsage) unless `url` is a URL of http or https. `origin` names its source, and
// `shown` is the URL in messages. http is for servers on this machine only.
void RequireWebUrl(const std::string& url, const std::string& origin, const std::string& shown);

// Returns the URL that `reference`, such as `/x`, means in an answer of `url`.
std::string ResolvedUrl(const std::string& url, const std::string& reference);

// Throws Error (kRefused) if a list has a name that leads out of a folder or is not printable.
void RequireSafeName(const std::string& name, const std::string& list);

}  // namespace shardinit
