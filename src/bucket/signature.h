// Describes HTTP requests and signs them with AWS Signature Version 4 (header `authorization`).
#pragma once

#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sha256.h"

namespace shardinit {

struct Request {
  std::string method;
  std::string scheme = {};  // `https`
  std::string host = {};    // with a port unless it is the scheme's default
  std::string path = {};    // begins with a slash; not encoded
  std::vector<std::pair<std::string, std::string>> query = {};  // not encoded
  std::map<std::string, std::string> headers = {};              // by name in lower case
  std::string_view body = {};
  std::string exact_url = {};  // encoded; replaces scheme, host, path and query unless it is empty

  std::string url() const;
};

struct Credentials {
  std::string key_id = {}, secret = {};  // empty: no credentials
  std::string token = {};                // of a session, or empty
  std::time_t expires = 0;               // 0: never
};

// Percent-encodes all but letters, digits and `-._~`, by RFC 3986. If `keeps_slashes`, keeps
// slashes.
std::string UriEncoded(std::string_view text, bool keeps_slashes = false);

// Computes HMAC with SHA-256 (RFC 2104).
Digest HmacSha256(std::string_view key, std::string_view message);

// Adds the headers that sign the request: its headers, query and body. Without credentials the
// request stays unsigned, which public buckets accept.
void Sign(const Credentials& credentials, const std::string& region, const std::string& service,
          std::time_t now, Request* request);

}  // namespace shardinit
