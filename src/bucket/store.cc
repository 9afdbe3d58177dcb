#include "bucket/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/parse_number.h"
#include "base/random.h"
#include "base/text.h"
#include "bucket/profile.h"
#include "bucket/xml.h"

namespace shardinit {
namespace {

constexpr int kAttempts = 10;
constexpr std::chrono::milliseconds kFirstWait{100}, kLongestWait{10'000};

constexpr char kIfNoneMatch[] = "if-none-match";
constexpr std::string_view kMetadata = "x-amz-meta-";

// Returns whether a request failed. A store may say so late, with a status that was sent before.
// An answer without failure has `element`, unless that is empty.
bool IsError(const Response& response, const std::string& element) {
  if (response.status / 100 != 2) return true;
  return element.empty() ? response.body.find("<Error>") != response.body.npos
                         : XmlElements(response.body, element).empty();
}

std::string CodeOf(const Response& response) { return XmlText(response.body, "Code"); }

// Returns whether the same request may get another answer.
bool IsPassing(const Response& response) {
  if (response.status == 0) return !response.is_hopeless;
  if (response.status / 100 == 2) return true;  // with an error in it
  if (response.status == 501) return false;     // It will not be made meanwhile.
  const std::string code = CodeOf(response);
  return response.status == 429 || response.status == 408 || response.status >= 500 ||
         code == "SlowDown" || code == "RequestTimeout" || code == "RequestTimeTooSkewed" ||
         code == "InternalError";
}

// Waits for a random time that doubles with each attempt, so that thousands do not come back at
// once.
void WaitBefore(int attempt) {
  const auto most = std::min(kLongestWait, kFirstWait * (1 << std::min(attempt, 10)));
  const auto wait = most / 2 + std::chrono::milliseconds(
                                   RandomBits() % static_cast<uint64_t>(most.count() / 2 + 1));
  const auto end = std::chrono::steady_clock::now() + wait;
  while (std::chrono::steady_clock::now() < end) {
    ThrowIfInterrupted();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void AddMetadata(const Metadata& metadata, Request* request) {
  for (const auto& [name, value] : metadata) {
    request->headers[fmt::format("{}{}", kMetadata, name)] = value;
  }
}

// Returns -1 if that is no number.
int64_t NumberIn(std::string_view text) { return ParseNumber<int64_t>(text).value_or(-1); }

std::string FirstOf(std::initializer_list<std::string> values) {
  for (const std::string& value : values) {
    if (!value.empty()) return value;
  }
  return {};
}

}  // namespace

Store::Store(BucketUrl url) : url_(std::move(url)), credentials_(&http_) {
  std::map<std::string, std::string> profile = ReadProfile();
  region_ = FirstOf({Environment("AWS_REGION"), Environment("AWS_DEFAULT_REGION"),
                     profile["region"], "us-east-1"});
  attempts_ =
      static_cast<int>(std::clamp<int64_t>(NumberIn(Environment("AWS_MAX_ATTEMPTS")), 0, 100));
  if (attempts_ == 0) attempts_ = kAttempts;
  std::string endpoint = FirstOf({Environment("AWS_ENDPOINT_URL_S3"),
                                  Environment("AWS_ENDPOINT_URL"), profile["endpoint_url"]});
  // A name with dots has no certificate as a part of a host's name, and servers that are named by
  // an address have no hosts within them.
  bool names_host = endpoint.empty() && url_.bucket.find('.') == url_.bucket.npos;
  if (profile["addressing_style"] == "virtual") names_host = true;
  if (profile["addressing_style"] == "path") names_host = false;
  if (endpoint.empty()) endpoint = fmt::format("https://s3.{}.amazonaws.com", region_);
  const Request at = shardinit::RequestFor("GET", endpoint, "AWS_ENDPOINT_URL");
  scheme_ = at.scheme;
  host_ = names_host ? fmt::format("{}.{}", url_.bucket, at.host) : at.host;
  base_ = at.path;
  while (base_.ends_with('/')) base_.pop_back();
  if (!names_host) base_ += "/" + url_.bucket;
}

Request Store::RequestFor(const std::string& method, const std::string& key) const {
  return {.method = method, .scheme = scheme_, .path = base_ + "/" + key};
}

Response Store::Send(Request request, const std::string& doing, const SendOptions& options) {
  int attempts = options.attempts;
  if (attempts == 0) attempts = attempts_;
  if (request.method == "PUT" || request.method == "POST") {
    request.headers["content-type"] = "application/octet-stream";
  }
  Response response;
  bool has_renewed = false, has_moved = false;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (attempt > 0) WaitBefore(attempt - 1);
    ThrowIfInterrupted();
    const Credentials credentials = credentials_.Get();
    std::string region;
    {
      // Both change together, and another thread may have been told so since the last attempt.
      const std::lock_guard lock(mutex_);
      region = region_;
      request.host = host_;
    }
    Sign(credentials, region, "s3", std::time(nullptr), &request);
    response = http_.Send(request, {.body = options.limit});
    if (response.status / 100 == 2 &&
        (request.method == "GET" || !IsError(response, options.element))) {
      return response;
    }
    // The store knows where the bucket is.
    const std::string where = response.Header("x-amz-bucket-region");
    if (!has_moved && !where.empty() && where != region &&
        (response.status / 100 == 3 || response.status == 400)) {
      has_moved = true;
      const std::lock_guard lock(mutex_);
      host_ = HostIn(std::move(host_), region, where);
      region_ = where;
      continue;
    }
    const std::string code = CodeOf(response);
    // The answer to HEAD has no body that could say so.
    if (!has_renewed && (code == "ExpiredToken" || code == "TokenRefreshRequired" ||
                         (credentials.expires != 0 && request.method == "HEAD" &&
                          (response.status == 400 || response.status == 403)))) {
      has_renewed = true;
      credentials_.Expire(credentials);
      continue;
    }
    // A conditional write that meets another one at this moment is told so, and may try again.
    const bool is_busy = response.status == 409 && request.method == "PUT";
    if (!is_busy && !IsPassing(response)) return response;
  }
  Throw(response, doing);
}

void Store::Throw(const Response& response, const std::string& doing) const {
  if (response.status == 0) {
    throw Error(ExitCode::kWorld, fmt::format("cannot {}: {}", doing, response.failure));
  }
  const std::string code = CodeOf(response), message = XmlText(response.body, "Message");
  std::string hint;
  if (response.status == 301 || code == "AuthorizationHeaderMalformed") {
    hint = "set AWS_REGION to the bucket's region, or AWS_ENDPOINT_URL to its store";
  } else if (code == "NoSuchBucket") {
    hint = "make the bucket first, and name its store in AWS_ENDPOINT_URL unless it is AWS";
  } else if (code == "RequestTimeTooSkewed") {
    hint = "set this machine's clock";
  } else if (response.status == 403) {
    hint = "shardinit-bucket(7) says where credentials are looked for, and what they must allow";
  }
  throw Error(code == "NoSuchBucket" ? ExitCode::kUsage : ExitCode::kWorld,
              fmt::format("cannot {}: the store answered {}{}{}{}{}", doing, response.status,
                          code.empty() ? "" : " ", Escape(code), message.empty() ? "" : ": ",
                          Escape(message)),
              hint);
}

bool Store::PutNew(const std::string& name, std::string_view bytes, const Metadata& metadata) {
  Request request = RequestFor("PUT", url_.KeyOf(name));
  request.headers[kIfNoneMatch] = "*";
  AddMetadata(metadata, &request);
  request.body = bytes;
  const std::string doing = fmt::format("write `{}`", UrlOf(name));
  const Response response = Send(std::move(request), doing);
  if (response.status / 100 == 2) return true;
  if (response.status == 412) return false;
  if (response.status == 501 || CodeOf(response) == "NotImplemented") {
    throw Error(ExitCode::kUsage,
                fmt::format("cannot {}: this store has no conditional writes (`If-None-Match: *`), "
                            "without which two runs could mix their files",
                            doing),
                "write to a local folder, and copy that with the store's own tool");
  }
  Throw(response, doing);
}

std::optional<std::string> Store::Get(const std::string& name, size_t limit) {
  const std::string doing = fmt::format("read `{}`", UrlOf(name));
  Response response = Send(RequestFor("GET", url_.KeyOf(name)), doing, {.limit = limit});
  if (response.status == 200) return std::move(response.body);
  if (response.status == 404 && CodeOf(response) != "NoSuchBucket") return {};
  Throw(response, doing);
}

std::optional<ObjectInfo> Store::Head(const std::string& name) {
  const std::string doing = fmt::format("look for `{}`", UrlOf(name));
  const Response response = Send(RequestFor("HEAD", url_.KeyOf(name)), doing);
  if (response.status == 404) return {};
  if (response.status != 200) Throw(response, doing);
  ObjectInfo info{.size = NumberIn(response.Header("content-length")),
                  .etag = response.Header("etag")};
  for (const auto& [header, value] : response.headers) {
    if (header.starts_with(kMetadata)) info.metadata[header.substr(kMetadata.size())] = value;
  }
  return info;
}

std::string Store::GetRange(const std::string& name, const std::string& etag, int64_t offset,
                            int64_t bytes) {
  const std::string doing = fmt::format("read `{}`", UrlOf(name));
  if (bytes == 0) return {};
  Request request = RequestFor("GET", url_.KeyOf(name));
  request.headers["if-match"] = etag;
  request.headers["range"] = fmt::format("bytes={}-{}", offset, offset + bytes - 1);
  // An error may be longer than what was asked for.
  const size_t limit = std::max(static_cast<size_t>(bytes), size_t{1} << 16);
  Response response = Send(std::move(request), doing, {.limit = limit});
  const bool is_given = response.status / 100 == 2;
  // A store may not know the condition.
  if (response.status == 412 || response.status == 404 ||
      (is_given && response.Header("etag") != etag)) {
    throw Error(ExitCode::kWorld, fmt::format("`{}` changed while it was read", UrlOf(name)),
                "stop what writes to it, and run the same command again");
  }
  if (!is_given) Throw(response, doing);
  const std::string wanted = fmt::format("bytes {}-{}/", offset, offset + bytes - 1);
  const std::string range = response.Header("content-range");
  if (!range.starts_with(wanted) || std::ssize(response.body) != bytes) {
    throw Error(ExitCode::kWorld,
                fmt::format("cannot {}: {} bytes `{}` were asked for, and {} bytes `{}` came",
                            doing, bytes, wanted, response.body.size(), Escape(range)));
  }
  return std::move(response.body);
}

void Store::RequireList(const Response& response, const std::string& root,
                        const std::string& doing) const {
  if (response.status != 200) Throw(response, doing);
  if (!XmlElements(response.body, root).empty()) return;
  throw Error(ExitCode::kWorld, fmt::format("cannot {}: the store's answer is no list: {}", doing,
                                            Escape(response.body.substr(0, 200))));
}

void Store::List(
    const std::string& prefix,
    const std::function<bool(const std::string& name, const ObjectInfo& info)>& visit) {
  const std::string doing = fmt::format("list `{}`", UrlOf(prefix));
  const std::string folder = url_.KeyOf("");
  for (std::string token; true;) {
    Request request = RequestFor("GET", "");
    request.query = {{"list-type", "2"}, {"prefix", folder + prefix}};
    if (!token.empty()) request.query.emplace_back("continuation-token", token);
    const Response response = Send(std::move(request), doing);
    RequireList(response, "ListBucketResult", doing);
    for (const std::string_view object : XmlElements(response.body, "Contents")) {
      const std::string key = XmlText(object, "Key");
      if (!key.starts_with(folder)) continue;
      const ObjectInfo info{.size = NumberIn(XmlText(object, "Size")),
                            .etag = XmlText(object, "ETag")};
      if (!visit(key.substr(folder.size()), info)) return;
    }
    token = XmlText(response.body, "NextContinuationToken");
    if (token.empty() || XmlText(response.body, "IsTruncated") != "true") return;
  }
}

std::string Store::BeginUpload(const std::string& name, const Metadata& metadata) {
  Request request = RequestFor("POST", url_.KeyOf(name));
  request.query = {{"uploads", ""}};
  AddMetadata(metadata, &request);
  const std::string doing = fmt::format("begin `{}`", UrlOf(name));
  const Response response =
      Send(std::move(request), doing, {.element = "InitiateMultipartUploadResult"});
  if (response.status != 200) Throw(response, doing);
  const std::string upload = XmlText(response.body, "UploadId");
  if (upload.empty()) {
    throw Error(ExitCode::kWorld, fmt::format("cannot {}: the store gave no upload", doing));
  }
  return upload;
}

std::optional<std::string> Store::PutPart(const std::string& name, const std::string& upload,
                                          int number, std::string_view bytes) {
  Request request = RequestFor("PUT", url_.KeyOf(name));
  request.query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}};
  request.body = bytes;
  const std::string doing = fmt::format("write `{}`", UrlOf(name));
  const Response response = Send(std::move(request), doing);
  if (response.status == 404 && CodeOf(response) == "NoSuchUpload") return {};
  if (response.status / 100 != 2) Throw(response, doing);
  const std::string etag = response.Header("etag");
  if (!etag.empty()) return etag;
  throw Error(ExitCode::kWorld, fmt::format("cannot {}: the store gave a part no ETag", doing));
}

Completion Store::CompleteUpload(const std::string& name, const std::string& upload,
                                 const std::vector<std::string>& etags) {
  Request request = RequestFor("POST", url_.KeyOf(name));
  request.query = {{"uploadId", upload}};
  request.headers[kIfNoneMatch] = "*";
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (size_t i = 0; i < etags.size(); ++i) {
    body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, etags[i]);
  }
  body += "</CompleteMultipartUpload>";
  request.body = body;
  const std::string doing = fmt::format("complete `{}`", UrlOf(name));
  const Response response =
      Send(std::move(request), doing, {.element = "CompleteMultipartUploadResult"});
  if (response.status / 100 == 2) return Completion::kMade;
  if (response.status == 412 || response.status == 409) return Completion::kRefused;
  if (response.status == 404 && CodeOf(response) == "NoSuchUpload") return Completion::kGone;
  if (response.status == 501 || CodeOf(response) == "NotImplemented") {
    throw Error(ExitCode::kUsage,
                fmt::format("cannot {}: this store has no conditional completion of uploads "
                            "(`If-None-Match: *`), without which two runs could mix their files",
                            doing),
                "write to a local folder, and copy that with the store's own tool");
  }
  Throw(response, doing);
}

void Store::EndUpload(const std::string& name, const std::string& upload, int attempts) {
  Request request = RequestFor("DELETE", url_.KeyOf(name));
  request.query = {{"uploadId", upload}};
  const std::string doing = fmt::format("end an upload of `{}`", UrlOf(name));
  const Response response = Send(std::move(request), doing, {.attempts = attempts});
  if (response.status / 100 != 2 && response.status != 404) Throw(response, doing);
}

void Store::ListUploads(
    const std::function<void(const std::string& name, const std::string& upload)>& visit) {
  const std::string folder = url_.KeyOf("");
  const std::string doing = fmt::format("list the uploads of `{}`", url_.text());
  for (std::string key_marker, upload_marker; true;) {
    Request request = RequestFor("GET", "");
    request.query = {{"uploads", ""}, {"prefix", folder}};
    if (!key_marker.empty()) {
      request.query.emplace_back("key-marker", key_marker);
      request.query.emplace_back("upload-id-marker", upload_marker);
    }
    const Response response = Send(std::move(request), doing);
    RequireList(response, "ListMultipartUploadsResult", doing);
    for (const std::string_view upload : XmlElements(response.body, "Upload")) {
      const std::string key = XmlText(upload, "Key");
      if (key.starts_with(folder)) visit(key.substr(folder.size()), XmlText(upload, "UploadId"));
    }
    if (XmlText(response.body, "IsTruncated") != "true") return;
    key_marker = XmlText(response.body, "NextKeyMarker");
    upload_marker = XmlText(response.body, "NextUploadIdMarker");
  }
}

}  // namespace shardinit
