#include "bucket/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "bucket/profile.h"
#include "bucket/xml.h"

namespace shardinit {
namespace {

constexpr int kAttempts = 10;

constexpr char kIfNoneMatch[] = "if-none-match";
constexpr std::string_view kMetadata = "x-amz-meta-";

// Returns whether a request failed. A store may report this late, in the body after a successful
// status. A successful response contains `element`, unless `element` is empty.
bool IsError(const Response& response, const std::string& element) {
  if (response.status / 100 != 2) return true;
  return element.empty() ? response.body.find("<Error>") != response.body.npos
                         : XmlElements(response.body, element).empty();
}

std::string CodeOf(const Response& response) { return XmlText(response.body, "Code"); }

// Returns whether a retry may get another response.
bool IsPassing(const Response& response) {
  if (response.status == 0) return !response.is_hopeless;
  if (response.status / 100 == 2) return true;  // contains an error
  if (response.status == 501) return false;     // a store will not add features meanwhile
  const std::string code = CodeOf(response);
  return response.status == 429 || response.status == 408 || response.status >= 500 ||
         code == "SlowDown" || code == "RequestTimeout" || code == "RequestTimeTooSkewed" ||
         code == "InternalError";
}

void AddMetadata(const Metadata& metadata, Request* request) {
  for (const auto& [name, value] : metadata) {
    request->headers[fmt::format("{}{}", kMetadata, name)] = value;
  }
}

// Returns -1 if the text is not a number.
int64_t NumberIn(std::string_view text) { return ParseNumber<int64_t>(text).value_or(-1); }

// Returns whether a text is the name of a region, which becomes a part of a host name.
bool IsRegion(std::string_view text) {
  return !text.empty() && text.size() <= 64 &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == text.npos;
}

// Returns whether a bucket's name can be a part of the host name. Host names have no capitals, and
// TLS wildcards do not cover names with dots.
bool MayNameHost(std::string_view bucket, std::string_view scheme) {
  return std::ranges::all_of(bucket, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           (c == '.' && scheme == "http");
  });
}

// Returns whether a host is an IP address, which has no subdomains.
bool IsAddress(std::string_view host) {
  return host.starts_with('[') ||
         host.substr(0, host.find(':')).find_first_not_of("0123456789.") == host.npos;
}

}  // namespace

Store::Store(BucketUrl url) : url_(std::move(url)), credentials_(&http_) {
  const Profile profile = ReadProfile();
  region_ = FirstOf({Environment("AWS_REGION"), Environment("AWS_DEFAULT_REGION"),
                     profile.Get("region"), "us-east-1"});
  attempts_ =
      static_cast<int>(std::clamp<int64_t>(NumberIn(Environment("AWS_MAX_ATTEMPTS")), 0, 100));
  if (attempts_ == 0) attempts_ = kAttempts;
  std::string endpoint = profile.EndpointOf("s3");
  const std::string style = profile.Get("s3.addressing_style");
  const bool wants_host = style == "virtual" || (endpoint.empty() && style != "path");
  if (endpoint.empty()) endpoint = fmt::format("https://s3.{}.amazonaws.com", region_);
  const Request at = shardinit::RequestFor("GET", endpoint, "AWS_ENDPOINT_URL");
  scheme_ = at.scheme;
  const bool names_host = wants_host && MayNameHost(url_.bucket, scheme_) && !IsAddress(at.host);
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
  // Follow the store's information about its region once, and about expired credentials once.
  // Neither counts as an attempt.
  for (int attempt = 0; attempt < attempts;) {
    ThrowIfInterrupted();
    const Credentials credentials = credentials_.Get();
    if (credentials.key_id.empty() && request.method != "GET" && request.method != "HEAD") {
      throw NoCredentials("the bucket needs credentials, but none were found");
    }
    std::string region;
    {
      // Both change together, and another thread may have changed them since the last attempt.
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
    const std::string code = CodeOf(response);
    const bool is_elsewhere = response.status / 100 == 3 || response.status == 400;
    // The store reports where the bucket is.
    const std::string where =
        FirstOf({response.Header("x-amz-bucket-region"), XmlText(response.body, "Region")});
    if (!has_moved && is_elsewhere && IsRegion(where) && where != region) {
      has_moved = true;
      const std::lock_guard lock(mutex_);
      host_ = HostIn(std::move(host_), region, where);
      region_ = where;
      continue;
    }
    // The response to HEAD has no body with such a code.
    if (!has_renewed && (code == "ExpiredToken" || code == "TokenRefreshRequired" ||
                         (credentials.expires != 0 && request.method == "HEAD" &&
                          (response.status == 400 || response.status == 403)))) {
      has_renewed = true;
      credentials_.Expire(credentials);
      continue;
    }
    if (credentials.key_id.empty() && (response.status == 401 || response.status == 403)) {
      throw NoCredentials(fmt::format(
          "cannot {}: the store answered {}, and no credentials for the bucket were found", doing,
          response.status));
    }
    // A conditional write that meets another one gets this status, and may be retried.
    const bool is_busy = response.status == 409 && request.method == "PUT";
    if (!is_busy && !IsPassing(response)) return response;
    if (++attempt < attempts) WaitBeforeRetry(attempt - 1);
  }
  Throw(response, doing);
}

void Store::Throw(const Response& response, const std::string& doing) {
  if (response.status == 0) {
    throw Error(ExitCode::kWorld, fmt::format("cannot {}: {}", doing, response.failure));
  }
  const std::string code = CodeOf(response), message = XmlText(response.body, "Message");
  std::string hint;
  if (response.status == 301 || code == "AuthorizationHeaderMalformed") {
    hint = "set AWS_REGION to the bucket's region, or AWS_ENDPOINT_URL to its store";
  } else if (code == "NoSuchBucket") {
    hint = "create the bucket first, and name its store in AWS_ENDPOINT_URL unless it is AWS";
  } else if (code == "RequestTimeTooSkewed") {
    hint = "set this machine's clock";
  } else if (response.status == 403) {
    hint = "shardinit-bucket(7) lists the places of credentials, and what they must allow";
  }
  // A retry cannot help with these.
  constexpr std::string_view kPermanent[] = {"NoSuchBucket", "AccessDenied", "InvalidAccessKeyId",
                                             "SignatureDoesNotMatch"};
  const bool is_permanent =
      std::find(std::begin(kPermanent), std::end(kPermanent), code) != std::end(kPermanent);
  throw Error(is_permanent ? ExitCode::kUsage : ExitCode::kWorld,
              fmt::format("cannot {}: the store answered {}{}{}{}{}", doing, response.status,
                          code.empty() ? "" : " ", credentials_.Printable(code),
                          message.empty() ? "" : ": ", credentials_.Printable(message)),
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
  if (etag.empty()) {
    throw Error(
        ExitCode::kWorld,
        fmt::format(
            "cannot {}: the store sends no ETag, so changes during the read cannot be detected",
            doing));
  }
  Request request = RequestFor("GET", url_.KeyOf(name));
  request.headers["if-match"] = etag;
  request.headers["range"] = fmt::format("bytes={}-{}", offset, offset + bytes - 1);
  // An error may be longer than the requested bytes.
  const size_t limit = std::max(static_cast<size_t>(bytes), size_t{1} << 16);
  Response response = Send(std::move(request), doing, {.limit = limit});
  const bool is_given = response.status / 100 == 2;
  // A store may ignore the condition.
  if (response.status == 412 || response.status == 404 ||
      (is_given && response.Header("etag") != etag)) {
    throw Error(ExitCode::kWorld, fmt::format("`{}` changed while it was read", UrlOf(name)),
                "stop what writes to it, and run the same command again");
  }
  if (!is_given) Throw(response, doing);
  const std::string wanted = fmt::format("bytes {}-{}/", offset, offset + bytes - 1);
  const std::string range = response.Header("content-range");
  if (!range.starts_with(wanted) || std::ssize(response.body) != bytes) {
    throw Error(
        ExitCode::kWorld,
        fmt::format("cannot {}: {} bytes `{}` were requested, but {} bytes `{}` arrived", doing,
                    bytes, wanted, response.body.size(), credentials_.Printable(range)));
  }
  return std::move(response.body);
}

void Store::ForEachPage(
    const Listing& listing, const std::vector<std::pair<std::string, std::string>>& query,
    const std::string& prefix, const std::string& doing,
    const std::function<bool(const std::string& name, std::string_view item)>& visit) {
  constexpr int kMostEmpty = 100;  // some pages have no key if many objects were removed
  const auto refuse = [&](const std::string& why) {
    return Error(ExitCode::kWorld,
                 fmt::format("cannot {}: the store's list may be incomplete: {}", doing, why),
                 "copy the objects to a local folder with the store's own tool, and use that");
  };
  const std::string folder = url_.KeyOf(""), begin = folder + prefix;
  std::set<std::vector<std::string>> asked;
  std::string last;
  int empty = 0;
  for (std::vector<std::string> at; true;) {
    Request request = RequestFor("GET", "");
    request.query = query;
    request.query.emplace_back("prefix", begin);
    for (size_t i = 0; i < at.size(); ++i) {
      if (!at[i].empty()) request.query.emplace_back(listing.next[i].second, at[i]);
    }
    const Response response = Send(std::move(request), doing);
    if (response.status != 200) Throw(response, doing);
    if (XmlElements(response.body, listing.root).empty()) {
      throw Error(ExitCode::kWorld, fmt::format("cannot {}: the store's answer is not a list: {}",
                                                doing, credentials_.Printable(response.body, 200)));
    }
    const std::vector<std::string_view> items = XmlElements(response.body, listing.item);
    for (const std::string_view item : items) {
      const std::string key = XmlText(item, "Key");
      if (!key.starts_with(begin)) {
        throw refuse(fmt::format("it has `{}`, which does not begin with {}",
                                 credentials_.Printable(key), Quote(begin)));
      }
      if (listing.is_ascending && !last.empty() && key <= last) {
        throw refuse(fmt::format("it has `{}` after `{}`", credentials_.Printable(key),
                                 credentials_.Printable(last)));
      }
      last = key;
      if (!visit(key.substr(folder.size()), item)) return;
    }
    // The request asked for neither.
    for (const char* name : {"CommonPrefixes", "EncodingType"}) {
      if (XmlText(response.body, name).empty()) continue;
      throw refuse(fmt::format("it has `{}`, which was not requested", name));
    }
    const std::string is_cut = XmlText(response.body, "IsTruncated");
    at.clear();
    for (const auto& [element, member] : listing.next) {
      at.push_back(XmlText(response.body, element));
    }
    const bool has_next = !at[0].empty();
    if (is_cut == "false" && has_next && listing.is_ascending) {
      throw refuse("it is marked as the last page, but names a next page");
    }
    if (is_cut == "false" || (is_cut.empty() && !has_next)) return;
    if (is_cut != "true" && !is_cut.empty()) {
      throw refuse(fmt::format("`IsTruncated` is `{}`", credentials_.Printable(is_cut)));
    }
    if (!has_next) throw refuse("it is not the last page, but names no next page");
    if (!asked.insert(at).second) throw refuse("it leads back to an earlier page");
    empty = items.empty() ? empty + 1 : 0;
    if (empty == kMostEmpty) {
      throw refuse(fmt::format("{} pages in a row are empty, and more follow", empty));
    }
  }
}

void Store::List(
    const std::string& prefix,
    const std::function<bool(const std::string& name, const ObjectInfo& info)>& visit) {
  const std::string doing = fmt::format("list `{}`", UrlOf(prefix));
  ForEachPage(
      {"ListBucketResult", "Contents", {{"NextContinuationToken", "continuation-token"}}, true},
      {{"list-type", "2"}}, prefix, doing, [&](const std::string& name, std::string_view object) {
        const ObjectInfo info{.size = NumberIn(XmlText(object, "Size")),
                              .etag = XmlText(object, "ETag")};
        if (info.size >= 0) return visit(name, info);
        throw Error(ExitCode::kWorld, fmt::format("cannot {}: the store sent no size of `{}`",
                                                  doing, credentials_.Printable(name)));
      });
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
    throw Error(ExitCode::kWorld, fmt::format("cannot {}: the store started no upload", doing));
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
  throw Error(ExitCode::kWorld, fmt::format("cannot {}: the store sent no ETag for a part", doing));
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
  ForEachPage(
      {.root = "ListMultipartUploadsResult",
       .item = "Upload",
       .next = {{"NextKeyMarker", "key-marker"}, {"NextUploadIdMarker", "upload-id-marker"}}},
      {{"uploads", ""}}, "", fmt::format("list the uploads of `{}`", url_.text()),
      [&](const std::string& name, std::string_view upload) {
        visit(name, XmlText(upload, "UploadId"));
        return true;
      });
}

}  // namespace shardinit
