#include "bucket/http.h"

// The macros that check options' types would call functions that are not linked.
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "base/interrupt.h"
#undef curl_easy_setopt
#undef curl_easy_getinfo

namespace shardinit {

struct Http::Library {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_reset) easy_reset = nullptr;
  decltype(&::curl_easy_setopt) easy_setopt = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;
};

namespace {

struct Transfer {
  Response response = {};
  size_t limit = 0;
  bool is_too_large = false;
};

// Ends a transfer when a signal came.
int IsInterrupted(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return PendingSignal() != 0 ? 1 : 0;
}

// Returns whether a failure has nothing to do with the network or the server at this moment.
bool IsHopeless(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL;
}

}  // namespace

size_t Http::TakeBody(char* data, size_t size, size_t count, void* transfer) {
  auto& to = *static_cast<Transfer*>(transfer);
  if (to.response.body.size() + size * count > to.limit) {
    to.is_too_large = true;
    return 0;
  }
  to.response.body.append(data, size * count);
  return size * count;
}

size_t Http::TakeHeader(char* data, size_t size, size_t count, void* transfer) {
  auto& to = *static_cast<Transfer*>(transfer);
  const std::string_view line(data, size * count);
  // A status line begins another answer: what came before was provisional.
  if (line.starts_with("HTTP/")) to.response.headers.clear();
  const size_t colon = line.find(':');
  if (colon != line.npos) {
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && std::string_view(" \t").find(value.front()) != value.npos) {
      value.remove_prefix(1);
    }
    while (!value.empty() && std::string_view(" \t\r\n").find(value.back()) != value.npos) {
      value.remove_suffix(1);
    }
    to.response.headers[name] = value;
  }
  return size * count;
}

std::string Response::Header(const std::string& name) const {
  const auto it = headers.find(name);
  return it == headers.end() ? std::string() : it->second;
}

const Http::Library& Http::Load() {
  static const Library library = [] {
    void* handle = nullptr;
    for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
      handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) break;
    }
    if (handle == nullptr) {
      throw Error(ExitCode::kUsage,
                  fmt::format("cannot load libcurl, which URLs need: {}", dlerror()),
                  "install it, as by `apt install libcurl4`");
    }
    Library found;
    const auto find = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
      if (*function != nullptr) return;
      throw Error(ExitCode::kUsage, fmt::format("libcurl has no function `{}`", name),
                  "install another version of it");
    };
    find("curl_global_init", &found.global_init);
    find("curl_easy_init", &found.easy_init);
    find("curl_easy_reset", &found.easy_reset);
    find("curl_easy_setopt", &found.easy_setopt);
    find("curl_easy_perform", &found.easy_perform);
    find("curl_easy_getinfo", &found.easy_getinfo);
    find("curl_easy_strerror", &found.easy_strerror);
    find("curl_easy_cleanup", &found.easy_cleanup);
    find("curl_slist_append", &found.slist_append);
    find("curl_slist_free_all", &found.slist_free_all);
    Check(found.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "curl_global_init");
    return found;
  }();
  return library;
}

Http::Http() : curl_(Load()) {}

Http::~Http() {
  for (void* handle : idle_) curl_.easy_cleanup(handle);
}

Response Http::Send(const Request& request, const HttpLimits& limits) {
  void* handle = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      handle = idle_.back();
      idle_.pop_back();
    }
  }
  if (handle == nullptr) handle = curl_.easy_init();
  if (handle == nullptr) throw std::bad_alloc();
  const auto set = [&](CURLoption option, auto value) {
    Check(curl_.easy_setopt(handle, option, value) == CURLE_OK, "an option of libcurl");
  };
  Transfer transfer{.response = {}, .limit = limits.body, .is_too_large = false};
  char failure[CURL_ERROR_SIZE] = "";
  const std::string url = request.url();
  curl_slist* headers = nullptr;
  // An `Expect` would cost a second where the server does not answer it.
  for (const char* none : {"Expect:", "Accept:"}) headers = curl_.slist_append(headers, none);
  for (const auto& [name, value] : request.headers) {
    if (name == "host") continue;  // libcurl sends the same.
    headers = curl_.slist_append(headers, fmt::format("{}: {}", name, value).c_str());
  }
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_HTTPHEADER, headers);
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_NOSIGNAL, 1L);
  if (limits.is_direct) set(CURLOPT_NOPROXY, "*");
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_CONNECTTIMEOUT, limits.connect_seconds);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, limits.stall_seconds);
  set(CURLOPT_ERRORBUFFER, failure);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, IsInterrupted);
  set(CURLOPT_WRITEFUNCTION, TakeBody);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  set(CURLOPT_HEADERFUNCTION, TakeHeader);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&transfer));
  if (const char* bundle = std::getenv("AWS_CA_BUNDLE"); bundle != nullptr && *bundle != '\0') {
    set(CURLOPT_CAINFO, bundle);
  }
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
  }
  set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  const CURLcode code = curl_.easy_perform(handle);
  long status = 0;
  curl_.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  const std::string reason = *failure != '\0' ? failure : curl_.easy_strerror(code);
  curl_.slist_free_all(headers);
  curl_.easy_reset(handle);
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(handle);
  }
  ThrowIfInterrupted();
  Response response = std::move(transfer.response);
  if (code == CURLE_OK) {
    response.status = static_cast<int>(status);
  } else {
    response.is_hopeless = IsHopeless(code) || transfer.is_too_large;
    response.failure = transfer.is_too_large
                           ? fmt::format("the answer has more than {} bytes", limits.body)
                           : reason;
  }
  return response;
}

}  // namespace shardinit
