#include "bucket/web.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/parse_number.h"
#include "base/text.h"

namespace shardinit {
namespace {

constexpr int kWebAttempts = 10, kMostRedirects = 10;
constexpr int64_t kLongestAsked = 300;           // seconds
constexpr size_t kLeastLimit = size_t{1} << 16;  // An error may be longer than the requested bytes.

// Returns whether a retry may get another response.
bool MayPass(const Response& response) {
  if (response.status == 0) return !response.is_hopeless;
  return response.status == 408 || response.status == 429 ||
         (response.status >= 500 && response.status != 501);
}

// Returns how long the server asks to wait. The Hub's rate limits have the form `"api";r=0;t=55`.
std::chrono::seconds AskedWait(const Response& response) {
  const std::string limit = response.Header("ratelimit");
  const size_t at = limit.find(";t=");
  const auto after = ParseNumber<int64_t>(response.Header("retry-after"));
  const auto reset = at == limit.npos ? std::nullopt : ParseNumber<int64_t>(limit.substr(at + 3));
  const bool is_limited = response.status == 429 || response.status == 503;
  if (!is_limited) return {};
  return std::chrono::seconds(
      std::clamp<int64_t>(after.value_or(reset.value_or(0)), 0, kLongestAsked));
}

// Returns the size in `bytes OFFSET-END/SIZE`; -1 if the text does not match the requested range.
int64_t SizeInRange(std::string_view text, int64_t offset, int64_t bytes) {
  const std::string begin = fmt::format("bytes {}-{}/", offset, offset + bytes - 1);
  if (!text.starts_with(begin)) return -1;
  const int64_t size = ParseNumber<int64_t>(text.substr(begin.size())).value_or(-1);
  return size <= kMostFileBytes ? size : -1;
}

Error WithoutRanges(const std::string& doing) {
  return Usage(fmt::format("cannot {}: the server sends whole files instead of ranges", doing),
               "download the file, and use the copy");
}

}  // namespace

std::string OriginOf(std::string_view url) {
  const size_t host = std::min(url.find("://"), url.size());
  return std::string(url.substr(0, url.find_first_of("/?#", std::min(host + 3, url.size()))));
}

void RequireWebUrl(const std::string& url, const std::string& origin, const std::string& shown) {
  const std::string server = OriginOf(url);
  const bool is_encrypted = server.starts_with("https://");
  const std::string host = server.substr(std::min(server.find("://") + 3, server.size()));
  const auto is_in_host = [](char c) {
    return IsAlphanumeric(c) || std::string_view("-._:[]").find(c) != std::string_view::npos;
  };
  // libcurl and this function must see the same host.
  const bool is_plain =
      std::ranges::all_of(url, [](char c) { return c > ' ' && c != '\x7f' && c != '\\'; });
  if ((!is_encrypted && !server.starts_with("http://")) || host.empty() || !is_plain ||
      !std::ranges::all_of(host, is_in_host)) {
    throw Usage(fmt::format("{} is {}, which is not a URL of a web server", origin, Quote(shown)),
                "write `https://HOST/PATH`, with `%20` for a space");
  }
  if (is_encrypted || IsOnThisMachine(host)) return;
  throw Usage(
      fmt::format("{} is {}, which is neither https nor on this machine", origin, Quote(shown)),
      "use https, which detects changes on the way");
}

std::string ResolvedUrl(const std::string& url, const std::string& reference) {
  const std::string server = OriginOf(url);
  const size_t scheme = reference.find("://");
  if (scheme < reference.find_first_of("/?#")) return reference;
  if (reference.starts_with("//")) return server.substr(0, server.find(':') + 1) + reference;
  if (reference.starts_with("/")) return server + reference;
  const std::string path = url.substr(0, url.find_first_of("?#"));
  if (reference.starts_with("?")) return path + reference;
  const size_t slash = path.rfind('/');
  return (slash < server.size() ? server : path.substr(0, slash)) + "/" + reference;
}

void RequireSafeName(const std::string& name, const std::string& list) {
  const std::string framed = "/" + name + "/";
  const bool is_safe =
      Escape(name) == name && name.size() <= 4096 &&
      std::ranges::none_of(std::initializer_list<const char*>{"//", "/./", "/../"},
                           [&](const char* part) { return framed.find(part) != framed.npos; });
  if (is_safe) return;
  throw Error(ExitCode::kRefused,
              fmt::format("{} has the name {}, which no file of a model has", list, Quote(name)));
}

Web::Web(const std::string& home, std::string token)
    : origin_(OriginOf(home)), token_(std::move(token)) {}

WebAnswer Web::Follow(const std::string& url, const std::string& doing, size_t limit,
                      const std::string& range) {
  WebAnswer answer{.url = url};
  bool is_home = true;
  for (int hop = 0; hop <= kMostRedirects; ++hop) {
    RequireWebUrl(answer.url, hop == 0 ? "the address" : "the target of a redirect",
                  Printable(answer.url));
    const std::string server = OriginOf(answer.url);
    // A server that was reached through another one may not get the token either.
    is_home = is_home && server == origin_;
    // Some servers reject requests without a name of the program.
    Request request{
        .method = "GET", .headers = {{"user-agent", "shardinit"}}, .exact_url = answer.url};
    if (!range.empty()) request.headers["range"] = range;
    if (is_home && !token_.empty()) request.headers["authorization"] = "Bearer " + token_;
    const bool is_direct = IsOnThisMachine(server.substr(server.find("://") + 3));
    answer.response =
        http_.Send(request, {.body = std::max(limit, kLeastLimit), .is_direct = is_direct});
    if (is_home) {
      answer.home.status = answer.response.status;
      for (const auto& [name, value] : answer.response.headers) answer.home.headers[name] = value;
    }
    const std::string target = answer.response.Header("location");
    if (answer.response.status / 100 != 3 || target.empty()) return answer;
    const std::string next = ResolvedUrl(answer.url, target);
    if (server.starts_with("https:") && !next.starts_with("https:")) {
      throw Error(ExitCode::kWorld, fmt::format("cannot {}: {} redirects to {}, which is not https",
                                                doing, server, Quote(Printable(next))));
    }
    answer.url = next;
  }
  throw Error(ExitCode::kWorld,
              fmt::format("cannot {}: more than {} redirects", doing, kMostRedirects));
}

WebAnswer Web::Get(const std::string& url, const std::string& doing, size_t limit,
                   const std::string& range) {
  for (int attempt = 0; true; ++attempt) {
    WebAnswer answer = Follow(url, doing, limit, range);
    const bool may_pass = MayPass(answer.response);
    if (!may_pass && answer.response.status != 0) return answer;
    if (!range.empty() && answer.response.is_too_large) throw WithoutRanges(doing);
    if (!may_pass || attempt + 1 == kWebAttempts) throw Failure(answer.response, doing);
    WaitBeforeRetry(attempt, AskedWait(answer.response));
  }
}

WebAnswer Web::GetRange(const std::string& url, const std::string& doing, int64_t offset,
                        int64_t bytes, int64_t size) {
  WebAnswer answer = Get(url, doing, static_cast<size_t>(bytes),
                         fmt::format("bytes={}-{}", offset, offset + bytes - 1));
  Response& response = answer.response;
  if (response.status / 100 != 2) return answer;
  const std::string encoding = response.Header("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    throw Error(ExitCode::kWorld, fmt::format("cannot {}: the server encoded the bytes as {}",
                                              doing, Quote(Printable(encoding))));
  }
  // A range that is the whole file may be answered without a range.
  if (response.status == 200 && bytes == size && std::ssize(response.body) == size) {
    response.status = 206;
    answer.file_size = size;
    return answer;
  }
  if (response.status != 206) throw WithoutRanges(doing);
  const std::string sent = response.Header("content-range");
  answer.file_size = SizeInRange(sent, offset, bytes);
  if (answer.file_size < offset + bytes || std::ssize(response.body) != bytes) {
    throw Error(
        ExitCode::kWorld,
        fmt::format("cannot {}: {} bytes from {} on were requested, but {} bytes {} arrived", doing,
                    bytes, offset, response.body.size(), Quote(Printable(sent))));
  }
  if (size < 0 || answer.file_size == size) return answer;
  throw Error(ExitCode::kWorld, fmt::format("cannot {}: its size must be {}, but is {}", doing,
                                            size, answer.file_size));
}

Error Web::Failure(const Response& response, const std::string& doing, const std::string& hint) {
  const bool is_final = response.status == 401 || response.status == 403 ||
                        response.status == 404 || response.status == 410;
  const std::string message = Printable(response.Header("x-error-message"));
  return Error(is_final ? ExitCode::kUsage : ExitCode::kWorld,
               response.status == 0
                   ? fmt::format("cannot {}: {}", doing, Printable(response.failure))
                   : fmt::format("cannot {}: the server answered {}{}{}", doing, response.status,
                                 message.empty() ? "" : ": ", message),
               hint);
}

std::string Web::Printable(std::string_view text) const {
  constexpr std::string_view kHidden = "***";
  std::string shown(text);
  for (size_t at = 0; !token_.empty() && (at = shown.find(token_, at)) != shown.npos;) {
    shown.replace(at, token_.size(), kHidden);
    at += kHidden.size();
  }
  return Escape(shown.substr(0, 500));
}

}  // namespace shardinit
