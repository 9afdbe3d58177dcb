#include "bucket/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "bucket/profile.h"
#include "bucket/signature.h"
#include "bucket/url.h"
#include "bucket/web.h"

namespace shardinit {
namespace {

constexpr size_t kPageLimit = 4 << 20, kListLimit = 64 << 20;  // bytes of JSON

struct HubUrl {
  std::string model;  // `ORG/MODEL`
  std::string revision = "main";
  std::string text;  // without the path of a file
};

HubUrl ParseHubUrl(const std::string& url) {
  std::string_view rest = std::string_view(url).substr(kHubScheme.size());
  const auto take_until = [&rest](std::string_view ends) {
    const std::string part(rest.substr(0, rest.find_first_of(ends)));
    rest.remove_prefix(part.size());
    return part;
  };
  const auto take = [&rest](char c) {
    if (!rest.starts_with(c)) return false;
    rest.remove_prefix(1);
    return true;
  };
  HubUrl parsed;
  const std::string owner = take_until("/@"), name = take('/') ? take_until("/@") : "";
  parsed.model = owner + "/" + name;
  if (take('@')) {
    // Clients of the Hub also accept the slashes of these revisions.
    const bool is_ref = rest.starts_with("refs/pr/") || rest.starts_with("refs/convert/");
    parsed.revision = take_until("/");
    for (int part = 0; is_ref && part < 2 && take('/'); ++part) {
      parsed.revision += "/" + take_until("/");
    }
    for (const char* slash : {"%2F", "%2f"}) {
      for (size_t at; (at = parsed.revision.find(slash)) != parsed.revision.npos;) {
        parsed.revision.replace(at, 3, "/");
      }
    }
  }
  parsed.text = url.substr(0, url.size() - rest.size());
  if (!owner.empty() && !name.empty() && !parsed.revision.empty() && owner != "datasets" &&
      owner != "spaces") {
    RequireSafeName(parsed.model + "/" + parsed.revision, "the URL");
    return parsed;
  }
  throw Usage(fmt::format("`{}` does not name a model on the Hub", Escape(url)),
              "write `hf://ORG/MODEL` or `hf://ORG/MODEL@REVISION`");
}

// Returns whether a variable of the Hub's client is set to a true value.
bool IsOn(const char* variable) {
  const std::string value = Lower(Environment(variable));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

// Returns the user's token, or an empty text. Looks in the order of the Hub's client.
std::string FindHubToken() {
  if (IsOn("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return {};
  std::string origin = "HF_TOKEN";
  std::string token = FirstOf({Environment("HF_TOKEN"), Environment("HUGGING_FACE_HUB_TOKEN")});
  if (token.empty()) {
    const std::string cache = FirstOf({Environment("XDG_CACHE_HOME"), "~/.cache"});
    const std::string home = FirstOf({Environment("HF_HOME"), cache + "/huggingface"});
    origin = ExpandedPath(FirstOf({Environment("HF_TOKEN_PATH"), home + "/token"}));
    ReadFileIfExists(origin, size_t{1} << 16, &token);
  }
  token = std::string(Trimmed(token));
  if (std::ranges::all_of(token, [](char c) { return c > ' ' && c < '\x7f'; })) return token;
  throw Usage(fmt::format("the token in {} has characters that no token has", Escape(origin)),
              "copy the token from the settings of your account on the Hub");
}

// Returns an ETag without quotes and without the mark of weak ETags.
std::string PlainETag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

bool IsHash(std::string_view text) {
  return (text.size() == 40 || text.size() == 64) &&
         text.find_first_not_of("0123456789abcdef") == text.npos;
}

// Returns an empty text if `in` lacks such a member.
std::string TextIn(const nlohmann::json& in, const char* key) {
  if (!in.is_object() || !in.contains(key) || !in[key].is_string()) return {};
  return in[key].get<std::string>();
}

// Returns -1 if `in` lacks a size that a file can have.
int64_t SizeIn(const nlohmann::json& in) {
  const auto found = in.find("size");
  if (found == in.end() || !found->is_number_unsigned()) return -1;
  const auto bytes = found->get<uint64_t>();
  return bytes <= uint64_t{kMostFileBytes} ? static_cast<int64_t>(bytes) : -1;
}

// Returns the URL of the next page in a `Link` header, or an empty text.
std::string NextPage(std::string_view link) {
  const size_t rel = std::min(link.find("rel=\"next\""), link.find("rel=next"));
  const size_t begin = link.rfind('<', rel);
  const size_t end = link.find('>', std::min(begin, link.size()));
  if (rel == link.npos || begin == link.npos || end == link.npos || end > rel) return {};
  return std::string(link.substr(begin + 1, end - begin - 1));
}

// One commit of a model. Thread-safe.
class HubModel {
 public:
  explicit HubModel(const HubUrl& url, const std::string& endpoint)
      : url_(url),
        endpoint_(endpoint),
        api_(fmt::format("{}/api/models/{}", endpoint, UriEncoded(url.model, true))),
        web_(endpoint, FindHubToken()) {}

  BucketTree::Objects List() {
    constexpr int kMostPages = 10'000;
    std::string next;
    size_t bytes = 0;
    const std::string commit =
        fmt::format("{}/revision/{}?expand=sha", api_, UriEncoded(url_.revision));
    commit_ = TextIn(GetJson(commit, &next, &bytes), "sha");
    const auto refuse = [&](const std::string& why) {
      return Error(ExitCode::kRefused, fmt::format("cannot list `{}`: {}", url_.text, why),
                   "set HF_ENDPOINT to a server with the interface of the Hub");
    };
    if (!IsHash(commit_)) throw refuse("the server named no commit of the revision");
    BucketTree::Objects objects;
    next = fmt::format("{}/tree/{}?recursive=true", api_, commit_);
    for (int page = 0; !next.empty(); ++page) {
      if (page == kMostPages) throw refuse(fmt::format("it has more than {} pages", kMostPages));
      if (OriginOf(next) != OriginOf(endpoint_)) throw refuse("it continues on another server");
      const nlohmann::json entries = GetJson(std::string(next), &next, &bytes);
      if (!entries.is_array()) throw refuse("the server's answer is not a list");
      for (const nlohmann::json& entry : entries) Add(entry, &objects);
    }
    return objects;
  }

  std::string Read(const std::string& key, const ObjectInfo& object, int64_t offset,
                   int64_t bytes) {
    if (bytes == 0) return {};
    const std::string doing = fmt::format("read `{}/{}`", url_.text, key);
    std::string place;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = places_.find(key); found != places_.end()) place = found->second;
    }
    WebAnswer answer;
    if (!place.empty()) answer = web_.GetRange(place, doing, offset, bytes, object.size);
    // The remembered place may have expired.
    if (!answer.is_range()) {
      answer =
          web_.GetRange(fmt::format("{}/{}/resolve/{}/{}", endpoint_, UriEncoded(url_.model, true),
                                    commit_, UriEncoded(key, true)),
                        doing, offset, bytes, object.size);
    }
    if (!answer.is_range()) Throw(answer, doing);
    RequireSame(answer, key, object);
    return std::move(answer.response.body);
  }

 private:
  nlohmann::json GetJson(const std::string& url, std::string* next, size_t* bytes) {
    const std::string doing = fmt::format("list `{}`", url_.text);
    const WebAnswer answer = web_.Get(url, doing, kPageLimit);
    if (answer.response.status != 200) Throw(answer, doing);
    const std::string link = NextPage(answer.response.Header("link"));
    *next = link.empty() ? link : ResolvedUrl(answer.url, link);
    *bytes += answer.response.body.size();
    if (*bytes <= kListLimit) return ParseJson(answer.response.body, web_.Printable(answer.url));
    throw Error(ExitCode::kRefused,
                fmt::format("cannot {}: the list has more than {} bytes", doing, kListLimit));
  }

  void Add(const nlohmann::json& entry, BucketTree::Objects* objects) const {
    const std::string list = fmt::format("the list of `{}`", url_.text);
    if (TextIn(entry, "type") == "directory") return;
    const std::string path = TextIn(entry, "path");
    RequireSafeName(path, list);
    const bool is_linked = entry.contains("lfs") && entry["lfs"].is_object();
    const nlohmann::json& file = is_linked ? entry["lfs"] : entry;
    const ObjectInfo object{.size = SizeIn(file), .etag = TextIn(file, "oid")};
    if (object.size < 0 || object.size != SizeIn(entry) || !IsHash(object.etag)) {
      throw Error(ExitCode::kRefused,
                  fmt::format("{} has no size or hash of {}", list, Quote(path)));
    }
    if (!objects->emplace(path, object).second) {
      throw Error(ExitCode::kRefused, fmt::format("{} has {} twice", list, Quote(path)));
    }
  }

  [[noreturn]] void Throw(const WebAnswer& answer, const std::string& doing) {
    const Response& response = answer.response;
    if (OriginOf(answer.url) != OriginOf(endpoint_)) throw web_.Failure(response, doing);
    const std::string code = response.Header("x-error-code");
    const bool is_hidden =
        response.status == 401 || response.status == 403 || response.status == 404;
    throw web_.Failure(
        response, doing,
        code == "GatedRepo"
            ? fmt::format("accept its licence at {}/{}, and set HF_TOKEN to a token "
                          "of the same account",
                          endpoint_, url_.model)
        : code == "RevisionNotFound" ? "name a branch, a tag or a commit of the model"
        : is_hidden
            ? "check the name; for a private model, set HF_TOKEN to a token that may read it"
            : "");
  }

  void RequireSame(const WebAnswer& answer, const std::string& key, const ObjectInfo& object) {
    const std::string etag = answer.response.Header("etag");
    const std::lock_guard lock(mutex_);
    const auto [first, is_new] = etags_.emplace(key + "\n" + OriginOf(answer.url), etag);
    bool is_same = first->second == etag;
    // A place that was remembered has no answer of the Hub.
    if (answer.home.status != 0) {
      const std::string linked = answer.home.Header("x-linked-etag");
      is_same = is_same && answer.home.Header("x-repo-commit") == commit_ &&
                PlainETag(linked.empty() ? answer.home.Header("etag") : linked) == object.etag;
      if (is_same && OriginOf(answer.url) != OriginOf(endpoint_)) places_[key] = answer.url;
    }
    if (is_same) return;
    throw Error(ExitCode::kWorld,
                fmt::format("`{}/{}` is not the file that was listed", url_.text, key),
                "run the same command again, and check HF_ENDPOINT if it is set");
  }

  const HubUrl url_;
  const std::string endpoint_, api_;
  Web web_;
  std::string commit_;
  std::mutex mutex_;
  std::map<std::string, std::string> places_;  // where the Hub redirected to, by key
  std::map<std::string, std::string> etags_;   // by key and server
};

}  // namespace

BucketTree::Parts ListHub(const std::string& url) {
  const HubUrl parsed = ParseHubUrl(url);
  if (IsOn("HF_HUB_OFFLINE")) {
    throw Usage(fmt::format("`{}` is on the Hub, but HF_HUB_OFFLINE is set", Escape(url)),
                "unset HF_HUB_OFFLINE, or name a local folder");
  }
  std::string endpoint = FirstOf({Environment("HF_ENDPOINT"), "https://huggingface.co"});
  while (endpoint.ends_with('/')) endpoint.pop_back();
  RequireWebUrl(endpoint, "HF_ENDPOINT", endpoint);
  const auto model = std::make_shared<HubModel>(parsed, endpoint);
  BucketTree::Objects objects = model->List();
  return {parsed.text, "", std::move(objects),
          [model](const std::string& key, const ObjectInfo& object, int64_t offset, int64_t bytes) {
            return model->Read(key, object, offset, bytes);
          }};
}

}  // namespace shardinit
