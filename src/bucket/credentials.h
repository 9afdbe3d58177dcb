// Finds the keys of the user or the machine where AWS's own tools find them.
#pragma once

#include <ctime>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bucket/http.h"
#include "bucket/profile.h"
#include "bucket/signature.h"

namespace shardinit {

// Safe to use from several threads.
class CredentialSource {
 public:
  explicit CredentialSource(Http* http) : http_(*http) {}

  // Returns credentials, which are renewed some minutes before they expire; empty ones if there are
  // none. Throws Error: kUsage if what says where they are is wrong, kWorld if they are not to be
  // had.
  Credentials Get();
  // The store says that these have expired: the next Get() finds others.
  void Expire(const Credentials& credentials);
  // Returns a text that a store or a service sent, to be printed: unsafe characters are escaped,
  // and secrets that it repeats are replaced. A long text is cut.
  std::string Printable(std::string_view text, size_t longest = 500);

 private:
  Credentials Find();
  // Returns whether there are such credentials, and throws if they should be there.
  bool FromWebIdentity(const Profile& profile, Credentials* found);
  bool FromProfile(const Profile& profile, Credentials* found);
  bool FromContainer(Credentials* found);
  bool FromMachine(const Profile& profile, Credentials* found);
  // Tries a request to a service of the machine or of AWS a few times. `is_direct`: the service is
  // this machine's own, and no proxy is used.
  Response Try(const Request& request, bool is_direct);
  // Returns the body of the answer. Throws Error (kWorld) if there is none.
  std::string BodyOf(const Response& response, const std::string& what);
  // Reads what services of machines and programs print.
  Credentials Read(const std::string& text, const std::string& what, const char* token_name);
  void AddSecret(const std::string& secret);

  Http& http_;
  std::mutex mutex_;
  std::optional<Credentials> current_;
  std::time_t found_at_ = 0;  // when `current_` was found
  std::mutex secrets_mutex_;
  std::vector<std::string> secrets_;  // that were found or sent so far
};

// Makes the error of a request that needs credentials; `what` says why it is one.
Error NoCredentials(const std::string& what);

// Reads a time as RFC 3339 has it, such as `2026-11-26T05:00:00.5+01:00`, in whole seconds; nothing
// if it is none.
std::optional<std::time_t> TimeOf(std::string_view text);

// Splits `https://host:1/path?a=b` into a request. Throws Error (kUsage) that names `origin`, where
// the URL stands.
Request RequestFor(const std::string& method, const std::string& url, const std::string& origin);

}  // namespace shardinit
