#include "bucket/http.h"

// Disables libcurl's macros that check the types of options: they call functions that are not
// linked.
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/parse_number.h"
#include "base/random.h"
#include "base/text.h"
#include "bucket/profile.h"
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

constexpr size_t kMostHeaders = 1 << 20;  // bytes
// Reserve at most this for the length that the server announces. More is reserved as the body
// arrives.
constexpr size_t kMostReserved = 16 << 20;

struct Transfer {
  Response response = {};
  size_t limit = 0;
  size_t header_bytes = 0;
  bool is_too_large = false;
  std::exception_ptr exception = {};
};

// Ends the transfer if `take` throws or returns false. libcurl is C, so exceptions must not cross
// it.
template <typename Take>
size_t Guard(void* transfer, size_t bytes, const Take& take) noexcept {
  auto& to = *static_cast<Transfer*>(transfer);
  try {
    return take(to) ? bytes : 0;
  } catch (...) {
    to.exception = std::current_exception();
    return 0;
  }
}

size_t TakeBody(char* data, size_t size, size_t count, void* transfer) noexcept {
  return Guard(transfer, size * count, [&](Transfer& to) {
    std::string& body = to.response.body;
    to.is_too_large = body.size() + size * count > to.limit;
    if (to.is_too_large) return false;
    body.append(data, size * count);
    return true;
  });
}

size_t TakeHeader(char* data, size_t size, size_t count, void* transfer) noexcept {
  return Guard(transfer, size * count, [&](Transfer& to) {
    const std::string_view line(data, size * count);
    // A status line begins another response: the one before was provisional.
    if (line.starts_with("HTTP/")) to.response.headers.clear();
    to.is_too_large = (to.header_bytes += line.size()) > kMostHeaders;
    if (to.is_too_large) return false;
    const size_t colon = line.find(':');
    if (colon == line.npos) return true;
    const std::string name = Lower(line.substr(0, colon));
    const std::string_view value = Trimmed(line.substr(colon + 1));
    // Without this, a body that grows as it arrives would need its memory twice.
    if (name == "content-length") {
      const size_t length = ParseNumber<size_t>(value).value_or(0);
      to.response.body.reserve(std::min({length, to.limit, kMostReserved}));
    }
    std::string& header = to.response.headers[name];
    // A proxy may add a list of links to the server's.
    header = name == "link" && !header.empty() ? fmt::format("{}, {}", header, value) : value;
    return true;
  });
}

// Ends a transfer when a signal arrived.
int IsInterrupted(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) noexcept {
  return PendingSignal() != 0 ? 1 : 0;
}

// Returns whether the failure does not depend on the current state of the network or the server.
bool IsHopeless(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL;
}

constexpr std::chrono::milliseconds kFirstWait{100}, kLongestWait{10'000};

}  // namespace

bool IsOnThisMachine(std::string_view host) {
  const size_t port = host.ends_with(']') ? host.npos : host.rfind(':');
  host = host.substr(0, port);
  return host == "localhost" || host == "[::1]" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos);
}

void WaitBeforeRetry(int attempt, std::chrono::milliseconds least) {
  const auto most = std::min(kLongestWait, kFirstWait * (1 << std::min(attempt, 10)));
  const auto wait = most / 2 + std::chrono::milliseconds(
                                   RandomBits() % static_cast<uint64_t>(most.count() / 2 + 1));
  const auto end = std::chrono::steady_clock::now() + std::max(wait, least);
  while (std::chrono::steady_clock::now() < end) {
    ThrowIfInterrupted();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
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

void* Http::TakeHandle() {
  const std::lock_guard lock(mutex_);
  if (!idle_.empty()) {
    void* const handle = idle_.back();
    idle_.pop_back();
    return handle;
  }
  idle_.reserve(++handles_);  // so that GiveBack() cannot fail
  void* const handle = curl_.easy_init();
  if (handle == nullptr) throw std::bad_alloc();
  return handle;
}

void Http::GiveBack(void* handle) {
  curl_.easy_reset(handle);
  const std::lock_guard lock(mutex_);
  idle_.push_back(handle);
}

Response Http::Send(const Request& request, const HttpLimits& limits) {
  const auto give_back = [this](void* used) { GiveBack(used); };
  const std::unique_ptr<void, decltype(give_back)> lease(TakeHandle(), give_back);
  void* const handle = lease.get();
  const auto set = [&](CURLoption option, auto value) {
    Check(curl_.easy_setopt(handle, option, value) == CURLE_OK, "an option of libcurl");
  };
  Transfer transfer{.limit = request.method == "HEAD" ? 0 : limits.body};
  char failure[CURL_ERROR_SIZE] = "";
  const std::string url = request.url();
  std::unique_ptr<curl_slist, decltype(curl_.slist_free_all)> headers(nullptr,
                                                                      curl_.slist_free_all);
  const auto add_header = [&](const std::string& line) {
    curl_slist* const longer = curl_.slist_append(headers.get(), line.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    (void)headers.release();
    headers.reset(longer);
  };
  // An `Expect` header would cost a second if the server does not respond to it.
  for (const char* none : {"Expect:", "Accept:"}) add_header(none);
  for (const auto& [name, value] : request.headers) {
    if (name == "host") continue;  // libcurl sends the same
    if (value.find_first_of("\r\n") != value.npos) {
      throw Error(ExitCode::kUsage, fmt::format("the header `{}` would span several lines", name));
    }
    add_header(fmt::format("{}: {}", name, value));
  }
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_HTTPHEADER, headers.get());
  // The path must be sent as it was signed.
  if (request.exact_url.empty()) set(CURLOPT_PATH_AS_IS, 1L);
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
  if (transfer.exception) std::rethrow_exception(transfer.exception);
  ThrowIfInterrupted();
  Response response = std::move(transfer.response);
  if (code == CURLE_OK) {
    response.status = static_cast<int>(status);
  } else {
    response.is_too_large = transfer.is_too_large;
    response.is_hopeless = IsHopeless(code) || transfer.is_too_large;
    response.failure =
        transfer.is_too_large
            ? fmt::format("the answer has more than {} bytes",
                          transfer.header_bytes > kMostHeaders ? kMostHeaders : limits.body)
            : reason;
  }
  return response;
}

}  // namespace shardinit
