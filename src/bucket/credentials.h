// Finds the keys of the user or the machine where AWS's own tools find them.
#pragma once

#include <functional>
#include <mutex>

#include "bucket/http.h"
#include "bucket/signature.h"

namespace shardinit {

// Safe to use from several threads.
class CredentialSource {
 public:
  explicit CredentialSource(Http* http) : http_(*http) {}

  // Returns credentials that do not expire in the next minutes. Throws Error: kUsage if what says
  // where they are is wrong, kWorld if they are not to be had.
  Credentials Get();
  // The store says that these have expired: the next Get() finds others.
  void Expire(const Credentials& credentials);

 private:
  Credentials Find();
  // Returns whether there are such credentials, and throws if they should be there.
  bool FromWebIdentity(const std::string& token_file, const std::string& role,
                       const std::string& session, const std::string& region, Credentials* found);
  bool FromProfile(Credentials* found);
  bool FromContainer(Credentials* found);
  bool FromMachine(Credentials* found);

  Http& http_;
  std::mutex mutex_;
  Credentials current_;
};

// Reads the time of an answer, as `2026-11-26T05:00:00Z`; 0: there is none.
std::time_t TimeOf(const std::string& text);

// Splits `https://host:1/path?a=b` into a request. Throws Error (kUsage) that names `origin`, where
// the URL stands.
Request RequestFor(const std::string& method, const std::string& url, const std::string& origin);

}  // namespace shardinit
