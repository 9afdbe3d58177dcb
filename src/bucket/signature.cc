#include "bucket/signature.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace shardinit {
namespace {

// Returns the query in the form that is both signed and sent.
std::string CanonicalQuery(const Request& request) {
  std::vector<std::string> members;
  for (const auto& [name, value] : request.query) {
    members.push_back(fmt::format("{}={}", UriEncoded(name), UriEncoded(value)));
  }
  std::sort(members.begin(), members.end());
  std::string query;
  for (const std::string& member : members) {
    query += (query.empty() ? "" : "&") + member;
  }
  return query;
}

std::string_view AsText(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string InUtc(std::time_t time, const char* format) {
  std::tm parts = {};
  gmtime_r(&time, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), format, &parts));
}

}  // namespace

std::string Request::url() const {
  if (!exact_url.empty()) return exact_url;
  const std::string sent = CanonicalQuery(*this);
  return fmt::format("{}://{}{}{}{}", scheme, host, UriEncoded(path, true), sent.empty() ? "" : "?",
                     sent);
}

std::string UriEncoded(std::string_view text, bool keeps_slashes) {
  std::string encoded;
  for (const char c : text) {
    const bool is_plain = IsAlphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~' ||
                          (c == '/' && keeps_slashes);
    encoded += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

// OpenSSL's HMAC() would pull in nearly all of a static libcrypto.
Digest HmacSha256(std::string_view key, std::string_view message) {
  constexpr size_t kBlock = 64;
  const Digest short_key = key.size() > kBlock ? Sha256Of(key) : Digest();
  if (key.size() > kBlock) key = AsText(short_key);
  const auto hash = [&](char pad, std::string_view text) {
    std::string block(kBlock, pad);
    for (size_t i = 0; i < key.size(); ++i) block[i] = static_cast<char>(block[i] ^ key[i]);
    return Sha256Of(block.append(text));
  };
  const Digest inner = hash(0x36, message);
  return hash(0x5c, AsText(inner));
}

void Sign(const Credentials& credentials, const std::string& region, const std::string& service,
          std::time_t now, Request* request) {
  request->headers["host"] = request->host;
  // A retried request may have headers of other credentials.
  request->headers.erase("x-amz-security-token");
  request->headers.erase("authorization");
  if (credentials.key_id.empty()) return;
  const std::string date = InUtc(now, "%Y%m%d");
  const std::string body = ToHex(Sha256Of(request->body));
  request->headers["x-amz-date"] = InUtc(now, "%Y%m%dT%H%M%SZ");
  request->headers["x-amz-content-sha256"] = body;
  if (!credentials.token.empty()) request->headers["x-amz-security-token"] = credentials.token;
  std::string headers, names;
  for (const auto& [name, value] : request->headers) {
    headers += fmt::format("{}:{}\n", name, value);
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request->method, UriEncoded(request->path, true),
                  CanonicalQuery(*request), headers, names, body);
  const std::string scope = fmt::format("{}/{}/{}/aws4_request", date, region, service);
  const std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", request->headers["x-amz-date"], scope,
                  ToHex(Sha256Of(canonical)));
  Digest key = HmacSha256("AWS4" + credentials.secret, date);
  for (const std::string_view part :
       {std::string_view(region), std::string_view(service), std::string_view("aws4_request")}) {
    key = HmacSha256(AsText(key), part);
  }
  request->headers["authorization"] =
      fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                  credentials.key_id, scope, names, ToHex(HmacSha256(AsText(key), to_sign)));
}

}  // namespace shardinit
