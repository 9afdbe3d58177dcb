// Finds the credentials of the user or the machine in the same places as AWS's own tools.
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

// Thread-safe.
class CredentialSource {
 public:
  explicit CredentialSource(Http* http) : http_(*http) {}

  // Returns credentials, or empty ones if it finds none. Renews them some minutes before they
  // expire. Throws Error: kUsage if the settings that locate them are wrong, kWorld if getting them
  // fails.
  Credentials Get();
  // Called when the store reports that the credentials have expired: the next Get() finds new ones.
  void Expire(const Credentials& credentials);
  // Returns a text from a store or a service in printable form: escapes unsafe characters, replaces
  // known secrets and truncates long texts.
  std::string Printable(std::string_view text, size_t longest = 500);

 private:
  Credentials Find();
  // Return whether such credentials exist. Throw if expected credentials are missing.
  bool FromWebIdentity(const Profile& profile, Credentials* found);
  bool FromProfile(const Profile& profile, Credentials* found);
  bool FromContainer(Credentials* found);
  bool FromMachine(const Profile& profile, Credentials* found);
  // Sends a request to a service of the machine or of AWS, with a few retries. `is_direct`: the
  // service is on this machine, so no proxy is used.
  Response Try(const Request& request, bool is_direct);
  // Returns the body of the response. Throws Error (kWorld) unless its status is 200.
  std::string BodyOf(const Response& response, const std::string& what);
  // Parses the JSON that services of machines and programs print.
  Credentials Read(const std::string& text, const std::string& what, const char* token_name);
  void AddSecret(const std::string& secret);

  Http& http_;
  std::mutex mutex_;
  std::optional<Credentials> current_;
  std::time_t found_at_ = 0;  // when `current_` was found
  std::mutex secrets_mutex_;
  std::vector<std::string> secrets_;  // found or sent so far
};

// Returns the error for a request that needs credentials. `what` is its message, with the reason.
Error NoCredentials(const std::string& what);

// Parses a time of RFC 3339, such as `2026-11-26T05:00:00.5+01:00`, in whole seconds. Returns
// nothing for other text.
std::optional<std::time_t> TimeOf(std::string_view text);

// Splits `https://host:1/path?a=b` into a request. Throws Error (kUsage), which names `origin`, the
// source of the URL.
Request RequestFor(const std::string& method, const std::string& url, const std::string& origin);

}  // namespace shardinit
