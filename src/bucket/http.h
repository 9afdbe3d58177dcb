// Sends requests of HTTP; the only door to libcurl, which is loaded when it is first needed.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bucket/signature.h"

namespace shardinit {

struct Response {
  int status = 0;  // 0: there was no whole answer, and `failure` says why
  std::string body = {};
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string failure = {};
  bool is_hopeless = false;  // The failure would come again, as that of a certificate.

  // Returns an empty text if the answer has no such header.
  std::string Header(const std::string& name) const;
};

struct HttpLimits {
  long connect_seconds = 20;
  // An answer that brings less than a byte in a second for so long counts as lost.
  long stall_seconds = 60;
  size_t body = size_t{4} << 30;
  bool is_direct = false;  // Whether no proxy is used, since the host is this machine's own.
};

// Keeps connections open for further requests. Safe to use from several threads.
class Http {
 public:
  // Throws Error (kUsage) if there is no libcurl.
  Http();
  ~Http();

  // Throws Interrupted when a signal asks for the end.
  Response Send(const Request& request, const HttpLimits& limits = {});

 private:
  struct Library;
  static const Library& Load();
  void* TakeHandle();
  void GiveBack(void* handle);

  const Library& curl_;
  std::mutex mutex_;
  std::vector<void*> idle_;  // handles with connections that no request uses now
  size_t handles_ = 0;       // that were made
};

}  // namespace shardinit
