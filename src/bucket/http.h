// Sends HTTP requests; only this file uses libcurl, which it loads on first use.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "bucket/signature.h"

namespace shardinit {

struct Response {
  int status = 0;  // 0: no complete response, `failure` has the reason
  std::string body = {};
  std::map<std::string, std::string> headers = {};  // by name in lower case
  std::string failure = {};
  bool is_hopeless = false;   // A retry would also fail, as for a bad certificate.
  bool is_too_large = false;  // The body has more bytes than the limit.

  // Returns an empty text if the response lacks the header.
  std::string Header(const std::string& name) const;
};

struct HttpLimits {
  long connect_seconds = 20;
  // A response slower than 1 byte/s for this long counts as lost.
  long stall_seconds = 60;
  size_t body = size_t{4} << 30;
  bool is_direct = false;  // Use no proxy, since the host is this machine.
};

// Returns whether `host`, which may have a port, is this machine.
bool IsOnThisMachine(std::string_view host);

// Waits before a request is repeated, for `least` or for a random time that doubles with each
// attempt, so that thousands of processes do not return at once. Throws Interrupted if a signal
// asks for the end.
void WaitBeforeRetry(int attempt, std::chrono::milliseconds least = {});

// Keeps connections open for later requests. Thread-safe.
class Http {
 public:
  // Throws Error (kUsage) if libcurl is missing.
  Http();
  ~Http();

  // Throws Interrupted if a signal asks for the end.
  Response Send(const Request& request, const HttpLimits& limits = {});

 private:
  struct Library;
  static const Library& Load();
  void* TakeHandle();
  void GiveBack(void* handle);

  const Library& curl_;
  std::mutex mutex_;
  std::vector<void*> idle_;  // handles with connections that are not in use
  size_t handles_ = 0;       // created so far
};

}  // namespace shardinit
