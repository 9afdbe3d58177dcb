// Runs an HTTP server in this process that gives a test's answers, and an in-memory object store
// that speaks S3.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/parse_number.h"

namespace shardinit {

// A request as received.
struct Asked {
  std::string method = {};
  std::string target = {};                          // path and query, or the URL that a proxy gets
  std::string path = {};                            // decoded
  std::map<std::string, std::string> query = {};    // decoded
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};

  std::string Header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  }
};

struct Answer {
  int status = 200;
  std::string body = {};
  std::map<std::string, std::string> headers = {};
  bool is_lost = false;   // close the connection instead
  std::string raw = {};   // sent before the status line
  int64_t promised = -1;  // bytes of the body, if it ends before all of them are sent
};

// Answers requests until it is destroyed. Each connection has its own thread.
class HttpServer {
 public:
  using Handler = std::function<Answer(const Asked&)>;

  explicit HttpServer(Handler handler) : handler_(std::move(handler)) {
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(socket_, 128) != 0 ||
        getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      std::abort();
    }
    host_ = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
    accepts_ = std::thread([this] { Accept(); });
  }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer() {
    shutdown(socket_, SHUT_RDWR);
    accepts_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int connection : connections_) shutdown(connection, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    for (const int connection : connections_) close(connection);
    close(socket_);
  }

  const std::string& host() const { return host_; }
  std::string url() const { return "http://" + host_; }

  // Returns the requests received since the last call.
  std::vector<Asked> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(asked_, {});
  }
  size_t connections() {
    const std::lock_guard lock(mutex_);
    return connections_.size();
  }

 private:
  static std::string Lower(std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
  }
  static std::string Decoded(std::string_view text) {
    std::string decoded;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool is_code =
          text[i] == '%' && i + 2 < text.size() &&
          text.substr(i + 1, 2).find_first_not_of("0123456789abcdefABCDEF") == text.npos;
      decoded += is_code ? static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), {}, 16))
                         : text[i];
      if (is_code) i += 2;
    }
    return decoded;
  }

  void Accept() {
    for (int connection; (connection = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      const std::lock_guard lock(mutex_);
      connections_.push_back(connection);
      threads_.emplace_back([this, connection] { Serve(connection); });
    }
  }

  void Serve(int connection) {
    std::string buffer;
    const auto more = [&] {
      char piece[65536];
      const ssize_t bytes = recv(connection, piece, sizeof(piece), 0);
      if (bytes > 0) buffer.append(piece, static_cast<size_t>(bytes));
      return bytes > 0;
    };
    while (true) {
      size_t end;
      while ((end = buffer.find("\r\n\r\n")) == buffer.npos) {
        if (!more()) return;
      }
      Asked asked = Read(buffer.substr(0, end + 2));
      buffer.erase(0, end + 4);
      const std::string length = asked.Header("content-length");
      const size_t size = ParseNumber<size_t>(length).value_or(0);
      while (buffer.size() < size) {
        if (!more()) return;
      }
      asked.body = buffer.substr(0, size);
      buffer.erase(0, size);
      {
        const std::lock_guard lock(mutex_);
        asked_.push_back(asked);
      }
      const Answer answer = handler_(asked);
      if (answer.is_lost) {
        shutdown(connection, SHUT_RDWR);
        return;
      }
      std::string text = fmt::format("{}HTTP/1.1 {} Told\r\n", answer.raw, answer.status);
      for (const auto& [name, value] : answer.headers)
        text += fmt::format("{}: {}\r\n", name, value);
      if (!answer.headers.contains("Content-Length")) {
        const int64_t promised =
            answer.promised < 0 ? static_cast<int64_t>(answer.body.size()) : answer.promised;
        text += fmt::format("Content-Length: {}\r\n", promised);
      }
      text += "\r\n";
      if (asked.method != "HEAD") text += answer.body;
      for (size_t sent = 0; sent < text.size();) {
        const ssize_t bytes =
            send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (bytes <= 0) return;
        sent += static_cast<size_t>(bytes);
      }
      if (answer.promised >= 0) {
        shutdown(connection, SHUT_RDWR);
        return;
      }
    }
  }

  static Asked Read(const std::string& head) {
    Asked asked;
    const size_t line = head.find("\r\n"), space = head.find(' ');
    asked.method = head.substr(0, space);
    asked.target = head.substr(space + 1, head.find(' ', space + 1) - space - 1);
    const size_t mark = std::min(asked.target.find('?'), asked.target.size());
    asked.path = Decoded(std::string_view(asked.target).substr(0, mark));
    for (size_t at = mark + 1; at < asked.target.size();) {
      const size_t end = std::min(asked.target.find('&', at), asked.target.size());
      const std::string member = asked.target.substr(at, end - at);
      const size_t equal = std::min(member.find('='), member.size());
      asked.query[Decoded(member.substr(0, equal))] =
          Decoded(member.substr(std::min(equal + 1, member.size())));
      at = end + 1;
    }
    for (size_t at = line + 2; at < head.size();) {
      const size_t end = head.find("\r\n", at), colon = head.find(": ", at);
      asked.headers[Lower(head.substr(at, colon - at))] =
          head.substr(colon + 2, end - std::min(end, colon + 2));
      at = end + 2;
    }
    return asked;
  }

  const Handler handler_;
  int socket_ = -1;
  std::string host_;
  std::mutex mutex_;
  std::vector<int> connections_;
  std::vector<std::thread> threads_;
  std::vector<Asked> asked_;
  std::thread accepts_;
};

// The objects of one bucket. `fault` may answer instead.
class MemoryStore {
 public:
  struct Stored {
    std::string bytes = {};
    std::string etag = {};
    std::map<std::string, std::string> metadata = {};  // by header
  };
  struct Upload {
    std::string key = {};
    std::map<std::string, std::string> metadata = {};
    std::map<int, std::string> parts = {};
  };

  std::string bucket = "bucket";
  std::map<std::string, Stored> objects;
  std::map<std::string, Upload> uploads;
  std::function<bool(const Asked&, Answer*)> fault;
  size_t page = 1000;  // maximum number of objects or uploads in one listing
  bool knows_conditions = true;

  void Put(const std::string& key, std::string bytes,
           std::map<std::string, std::string> metadata = {}) {
    const std::string etag = fmt::format("\"{}-{}\"", ++made_, bytes.size());
    objects[key] = {std::move(bytes), etag, std::move(metadata)};
  }

  static Answer Failure(int status, const std::string& code) {
    return {.status = status,
            .body = fmt::format("<Error><Code>{}</Code><Message>told</Message></Error>", code)};
  }

  Answer operator()(const Asked& asked) {
    const std::lock_guard lock(mutex_);
    Answer told;
    if (fault && fault(asked, &told)) return told;
    const std::string begin = "/" + bucket + "/";
    if (!asked.path.starts_with(begin)) return Failure(404, "NoSuchBucket");
    const std::string key = asked.path.substr(begin.size());
    if (asked.method == "GET" && asked.query.contains("list-type")) return List(asked);
    if (asked.method == "GET" && asked.query.contains("uploads")) return ListUploads(asked);
    if (asked.query.contains("uploads")) {
      const std::string id = fmt::format("u{}", ++made_);
      uploads[id] = {key, MetadataIn(asked), {}};
      return {.body = fmt::format("<InitiateMultipartUploadResult><UploadId>{}</UploadId>"
                                  "</InitiateMultipartUploadResult>",
                                  id)};
    }
    if (asked.query.contains("uploadId")) return InUpload(asked, key);
    const auto found = objects.find(key);
    if (asked.method == "PUT") {
      if (found != objects.end() && IsNew(asked)) return Failure(412, "PreconditionFailed");
      Put(key, asked.body, MetadataIn(asked));
      return {.headers = {{"ETag", objects[key].etag}}};
    }
    if (found == objects.end()) return Failure(404, "NoSuchKey");
    const Stored& object = found->second;
    Answer answer{.body = object.bytes, .headers = object.metadata};
    answer.headers["ETag"] = object.etag;
    if (asked.method == "HEAD")
      answer.headers["Content-Length"] = std::to_string(answer.body.size());
    if (const std::string wanted = asked.Header("if-match");
        !wanted.empty() && wanted != object.etag) {
      return Failure(412, "PreconditionFailed");
    }
    if (const std::string range = asked.Header("range"); !range.empty()) {
      const size_t dash = range.find('-');
      const size_t from = ParseNumber<size_t>(range.substr(6, dash - 6)).value_or(0),
                   to = ParseNumber<size_t>(range.substr(dash + 1)).value_or(0);
      answer.headers["Content-Range"] =
          fmt::format("bytes {}-{}/{}", from, to, object.bytes.size());
      answer.body = object.bytes.substr(from, to - from + 1);
      answer.status = 206;
    }
    return answer;
  }

 private:
  bool IsNew(const Asked& asked) const {
    return knows_conditions && asked.Header("if-none-match") == "*";
  }
  static std::map<std::string, std::string> MetadataIn(const Asked& asked) {
    std::map<std::string, std::string> metadata;
    for (const auto& [name, value] : asked.headers) {
      if (name.starts_with("x-amz-meta-")) metadata[name] = value;
    }
    return metadata;
  }
  static std::string QueryOf(const Asked& asked, const std::string& name) {
    const auto found = asked.query.find(name);
    return found == asked.query.end() ? std::string() : found->second;
  }

  Answer InUpload(const Asked& asked, const std::string& key) {
    const auto found = uploads.find(QueryOf(asked, "uploadId"));
    if (found == uploads.end() || found->second.key != key) return Failure(404, "NoSuchUpload");
    if (asked.method == "DELETE") {
      uploads.erase(found);
      return {.status = 204};
    }
    if (asked.method == "PUT") {
      found->second.parts[std::stoi(QueryOf(asked, "partNumber"))] = asked.body;
      return {.headers = {{"ETag", fmt::format("\"part-{}\"", QueryOf(asked, "partNumber"))}}};
    }
    if (objects.contains(key) && IsNew(asked)) return Failure(412, "PreconditionFailed");
    std::string bytes, list;
    for (const auto& [number, part] : found->second.parts) {
      bytes += part;
      list +=
          fmt::format("<Part><PartNumber>{0}</PartNumber><ETag>\"part-{0}\"</ETag></Part>", number);
    }
    if (asked.body.find(">" + list + "</CompleteMultipartUpload>") == asked.body.npos) {
      return Failure(400, "InvalidPart");
    }
    Put(key, bytes, found->second.metadata);
    uploads.erase(found);
    return {.body = "<CompleteMultipartUploadResult><Key>k</Key></CompleteMultipartUploadResult>"};
  }

  Answer List(const Asked& asked) const {
    const std::string prefix = QueryOf(asked, "prefix"),
                      after = QueryOf(asked, "continuation-token");
    std::string text, last;
    size_t listed = 0;
    bool is_cut = false;
    for (const auto& [key, object] : objects) {
      if (!key.starts_with(prefix) || (!after.empty() && key <= after)) continue;
      if ((is_cut = listed == page)) break;
      text += fmt::format("<Contents><Key>{}</Key><Size>{}</Size><ETag>{}</ETag></Contents>", key,
                          object.bytes.size(), object.etag);
      last = key;
      ++listed;
    }
    const std::string next =
        is_cut ? fmt::format("<NextContinuationToken>{}</NextContinuationToken>", last) : "";
    return {.body = fmt::format(
                "<ListBucketResult>{}<IsTruncated>{}</IsTruncated>{}</ListBucketResult>", text,
                is_cut, next)};
  }

  Answer ListUploads(const Asked& asked) const {
    std::string text;
    for (const auto& [id, upload] : uploads) {
      if (!upload.key.starts_with(QueryOf(asked, "prefix"))) continue;
      text += fmt::format("<Upload><Key>{}</Key><UploadId>{}</UploadId></Upload>", upload.key, id);
    }
    return {.body = fmt::format("<ListMultipartUploadsResult>{}<IsTruncated>false</IsTruncated>"
                                "</ListMultipartUploadsResult>",
                                text)};
  }

  std::mutex mutex_;
  int made_ = 0;
};

}  // namespace shardinit
