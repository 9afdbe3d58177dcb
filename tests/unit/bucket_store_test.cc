// Tests the requests to a store and the handling of its answers, with a server in this process.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bucket/credentials.h"
#include "bucket/http.h"
#include "bucket/made_once.h"
#include "bucket/profile.h"
#include "bucket/signature.h"
#include "bucket/store.h"
#include "bucket/tree.h"
#include "bucket/url.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file_tasks.h"
#include "checkpoint/manifest.h"
#include "formats/format.h"
#include "graph/graph.h"
#include "place/bucket_place.h"
#include "place/object_writer.h"
#include "support/environment.h"
#include "support/http_server.h"
#include "support/spec_text.h"

namespace shardinit {
namespace {

// Returns the error that `function` throws, or an error without a message.
Error ErrorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& e) {
    return e;
  }
  return Error(ExitCode::kOk, "");
}

// A store that gives prepared answers in order, and repeats the last one.
class StoreWithFixedAnswers : public InEnvironment {
 protected:
  StoreWithFixedAnswers() { PointTo(server); }

  static Store Made(const std::string& url = "s3://bucket/a") { return Store(ParseBucketUrl(url)); }
  void Tell(std::vector<Answer> answers) {
    const std::lock_guard lock(mutex_);
    answers_ = std::move(answers);
    next_ = 0;
  }

  HttpServer server{[this](const Asked&) {
    const std::lock_guard lock(mutex_);
    return answers_.at(std::min(next_++, answers_.size() - 1));
  }};

 private:
  std::mutex mutex_;
  std::vector<Answer> answers_;
  size_t next_ = 0;
};

Answer Failed(int status, const std::string& code = "", const std::string& message = "") {
  return {
      .status = status,
      .body = fmt::format("<Error><Code>{}</Code><Message>{}</Message></Error>", code, message)};
}

TEST_F(StoreWithFixedAnswers, RetriesTransientFailures) {
  struct Case {
    Answer answer;
    bool passes;  // for a GET
    bool passes_in_put;
  };
  const Case cases[] = {
      {Failed(500, "InternalError"), true, true},
      {Failed(500), true, true},
      {Failed(502), true, true},
      {Failed(503, "SlowDown"), true, true},
      {Failed(504), true, true},
      {Failed(429), true, true},
      {Failed(408), true, true},
      {Failed(400, "SlowDown"), true, true},
      {Failed(400, "RequestTimeout"), true, true},
      {Failed(403, "RequestTimeTooSkewed"), true, true},
      {Failed(400, "InternalError"), true, true},
      {{.is_lost = true}, true, true},
      {Failed(409, "ConditionalRequestConflict"), false, true},
      {Failed(200, "InternalError"), false, true},  // An object may contain such a text.
      {Failed(501, "NotImplemented"), false, false},
      {Failed(400, "BadDigest"), false, false},
      {Failed(403, "AccessDenied"), false, false},
      {Failed(401), false, false},
      {Failed(407), false, false},
      {Failed(410), false, false},
      {Failed(428), false, false},
      {Failed(430), false, false},
  };
  for (const Case& each : cases) {
    Store store = Made();  // A new connection: libcurl itself retries on a reused one.
    Tell({each.answer, {.body = "x", .headers = {{"ETag", "e"}}}});
    const Error error = ErrorOf([&] {
      EXPECT_EQ(store.Get("o", 1000),
                each.answer.status == 200 && !each.answer.is_lost ? each.answer.body : "x");
    });
    const std::string what = fmt::format("{} {}", each.answer.status, each.answer.body);
    EXPECT_EQ(server.Take().size(), each.passes ? 2u : 1u) << what;
    EXPECT_EQ(error.code() == ExitCode::kOk, each.passes || each.answer.status == 200) << what;
    Tell({each.answer, {.headers = {{"ETag", "e"}}}});
    Store other = Made();
    const Error in_put = ErrorOf([&] { EXPECT_EQ(other.PutPart("o", "u", 1, "x"), "e"); });
    EXPECT_EQ(server.Take().size(), each.passes_in_put ? 2u : 1u) << what;
    EXPECT_EQ(in_put.code() == ExitCode::kOk, each.passes_in_put) << what;
  }
}

TEST_F(StoreWithFixedAnswers, RetriesUpToMaxAttempts) {
  Tell({Failed(503, "SlowDown", "wait")});
  const std::pair<const char*, size_t> cases[] = {{"1", 1}, {"3", 3}};
  for (const auto& [attempts, sent] : cases) {
    Set("AWS_MAX_ATTEMPTS", attempts);
    Store store = Made();
    const auto begin = std::chrono::steady_clock::now();
    const Error error = ErrorOf([&] { store.Get("o", 1000); });
    EXPECT_STREQ(error.what(),
                 "cannot read `s3://bucket/a/o`: the store answered 503 SlowDown: wait");
    EXPECT_EQ(error.code(), ExitCode::kWorld);
    EXPECT_EQ(server.Take().size(), sent);
    // It waits at least half of 100 ms, and twice as long before the third attempt.
    if (sent == 3) {
      EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(150));
    }
    EXPECT_EQ(ErrorOf([&] { store.EndUpload("o", "u"); }).code(), ExitCode::kWorld);
    EXPECT_EQ(server.Take().size(), sent);
  }
  // An invalid number of attempts is ignored: the default allows more than two.
  for (const char* wrong : {"x", "-1", "0"}) {
    Set("AWS_MAX_ATTEMPTS", wrong);
    Tell({Failed(503), Failed(503), {.body = "x"}});
    EXPECT_EQ(Made().Get("o", 1000), "x") << wrong;
  }
}

TEST_F(StoreWithFixedAnswers, ErrorsHaveTheStoresAnswerAndAHint) {
  const std::string doing = "cannot read `s3://bucket/a/o`: the store answered ";
  const std::string region =
      "set AWS_REGION to the bucket's region, or AWS_ENDPOINT_URL to its store";
  const std::string allowed =
      "shardinit-bucket(7) lists the places of credentials, and what they must allow";
  const struct {
    Answer answer;
    std::string words, hint;
    ExitCode code = ExitCode::kWorld;
  } cases[] = {
      {Failed(301, "PermanentRedirect", "there"), "301 PermanentRedirect: there", region},
      {Failed(400, "AuthorizationHeaderMalformed"), "400 AuthorizationHeaderMalformed", region},
      {Failed(404, "NoSuchBucket"), "404 NoSuchBucket",
       "create the bucket first, and name its store in AWS_ENDPOINT_URL unless it is AWS",
       ExitCode::kUsage},
      {Failed(403, "RequestTimeTooSkewed"), "403 RequestTimeTooSkewed", "set this machine's clock"},
      {Failed(403, "AccessDenied", "no\x1b[m"), "403 AccessDenied: no\\x1b[m", allowed,
       ExitCode::kUsage},
      {Failed(403), "403", allowed},
      {Failed(400, "", "why"), "400: why", ""},
      {Failed(400, "A\x1b", ""), "400 A\\x1b", ""},
      {{.status = 302, .body = "no XML"}, "302", ""},
  };
  Set("AWS_MAX_ATTEMPTS", "1");
  Store store = Made();
  for (const auto& each : cases) {
    Tell({each.answer});
    const Error error = ErrorOf([&] { store.Get("o", 1000); });
    EXPECT_EQ(error.what(), doing + each.words);
    EXPECT_EQ(error.hint(), each.hint) << each.words;
    EXPECT_EQ(error.code(), each.code) << each.words;
  }
}

TEST_F(StoreWithFixedAnswers, FollowsRedirectsToAnotherRegion) {
  const auto scope = [](const Asked& asked) {
    const std::string text = asked.Header("authorization");
    const size_t begin = text.find("Credential=") + 11;
    return text.substr(begin, text.find(',') - begin).substr(14);
  };
  Answer moved = Failed(301, "PermanentRedirect");
  moved.headers["X-Amz-Bucket-Region"] = "us-west-9";
  for (const int status : {301, 307, 400}) {
    moved.status = status;
    Tell({moved, {.body = "x"}, {.body = "y"}});
    Store store = Made();
    EXPECT_EQ(store.Get("o", 1000), "x");
    EXPECT_EQ(store.Get("o", 1000), "y");
    const std::vector<Asked> asked = server.Take();
    ASSERT_EQ(asked.size(), 3u);
    EXPECT_EQ(scope(asked[0]), "eu-test-1/s3/aws4_request");
    EXPECT_EQ(scope(asked[1]), "us-west-9/s3/aws4_request");
    EXPECT_EQ(scope(asked[2]), "us-west-9/s3/aws4_request");
    EXPECT_EQ(asked[1].Header("host"), server.host());
  }
  // AWS's host names contain the region.
  Set("http_proxy", server.url());
  Set("AWS_ENDPOINT_URL", "http://s3.eu-test-1.amazonaws.com");
  moved.status = 301;
  Tell({moved, {.body = "x"}});
  Made().Get("o", 1000);
  EXPECT_EQ(server.Take().at(1).target, "http://s3.us-west-9.amazonaws.com/bucket/a/o");
  PointTo(server);
  // A redirect is followed even with only one attempt, and the text may name the region.
  Set("AWS_MAX_ATTEMPTS", "1");
  Tell({Failed(400, "AuthorizationHeaderMalformed</Code><Region>us-west-9</Region><Code>"),
        {.body = "x"}});
  EXPECT_EQ(Made().Get("o", 1000), "x");
  EXPECT_EQ(scope(server.Take().at(1)), "us-west-9/s3/aws4_request");
  Answer hostile = moved;
  hostile.headers["X-Amz-Bucket-Region"] = "evil.example/";
  Tell({hostile});
  EXPECT_EQ(ErrorOf([&] { Made().Get("o", 1000); }).code(), ExitCode::kWorld);
  EXPECT_EQ(server.Take().size(), 1u);
  // A redirect is followed only once, and not if it names the same region or has another status.
  Answer other = moved;
  other.headers["X-Amz-Bucket-Region"] = "us-west-8";
  Answer same = moved;
  same.headers["X-Amz-Bucket-Region"] = "eu-test-1";
  Answer refused = moved;
  refused.status = 403;
  for (const auto& [answers, sent] : std::vector<std::pair<std::vector<Answer>, size_t>>{
           {{moved, other}, 2}, {{same}, 1}, {{refused}, 1}}) {
    Tell(answers);
    Store store = Made();
    EXPECT_EQ(ErrorOf([&] { store.Get("o", 1000); }).code(), ExitCode::kWorld);
    EXPECT_EQ(server.Take().size(), sent);
  }
}

// A store in another region may report expired keys after the redirect, or before it.
TEST_F(StoreWithFixedAnswers, RenewsKeysInAnotherRegion) {
  Set("AWS_ACCESS_KEY_ID", "");
  Set("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/keys");
  Set("AWS_MAX_ATTEMPTS", "3");
  const auto keys = [](const std::string& token) {
    return Answer{.body = fmt::format(
                      R"({{"AccessKeyId": "A", "SecretAccessKey": "S", "Token": "{}"}})", token)};
  };
  Answer moved = Failed(301, "PermanentRedirect");
  moved.headers["X-Amz-Bucket-Region"] = "us-west-9";
  const Answer expired = Failed(400, "ExpiredToken");
  Set("AWS_MAX_ATTEMPTS", "1");
  for (const std::vector<Answer>& answers :
       {std::vector<Answer>{keys("one"), moved, expired, keys("two"), {.body = "x"}},
        {keys("one"), expired, keys("two"), moved, {.body = "x"}}}) {
    Tell(answers);
    EXPECT_EQ(Made().Get("o", 1000), "x");
    const Asked last = server.Take().at(4);
    EXPECT_EQ(last.Header("x-amz-security-token"), "two");
    EXPECT_NE(last.Header("authorization").find("/us-west-9/s3/"), std::string::npos);
  }
}

// A thread that retries a request uses the region that another thread has learned meanwhile.
TEST_F(StoreWithFixedAnswers, RetriesUseTheRegionLearnedByAnotherThread) {
  std::optional<Store> store;
  std::vector<std::string> asked;
  std::mutex mutex;
  // The server is a proxy, so it sees the hosts.
  HttpServer proxy([&](const Asked& one) {
    const bool is_first = [&] {
      const std::lock_guard lock(mutex);
      asked.push_back(one.target);
      return asked.size() == 1;
    }();
    if (is_first) {
      EXPECT_EQ(store->Get("other", 1000), "there");
    }
    if (one.target.find("us-west-9") != std::string::npos) return Answer{.body = "there"};
    if (is_first) return Failed(503, "SlowDown");
    Answer moved = Failed(301, "PermanentRedirect");
    moved.headers["X-Amz-Bucket-Region"] = "us-west-9";
    return moved;
  });
  Set("http_proxy", proxy.url());
  Set("AWS_ENDPOINT_URL", "http://s3.eu-test-1.amazonaws.com");
  store.emplace(ParseBucketUrl("s3://bucket/a"));
  EXPECT_EQ(store->Get("first", 1000), "there");
  EXPECT_EQ(asked, (std::vector<std::string>{"http://s3.eu-test-1.amazonaws.com/bucket/a/first",
                                             "http://s3.eu-test-1.amazonaws.com/bucket/a/other",
                                             "http://s3.us-west-9.amazonaws.com/bucket/a/other",
                                             "http://s3.us-west-9.amazonaws.com/bucket/a/first"}));
}

TEST_F(StoreWithFixedAnswers, RenewsExpiredKeys) {
  Set("AWS_ACCESS_KEY_ID", "");
  Set("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/keys");
  const auto keys = [](const std::string& token, const std::string& expires) {
    return Answer{.body =
                      fmt::format(R"({{"AccessKeyId": "A", "SecretAccessKey": "S", "Token": "{}",
                                           "Expiration": "{}"}})",
                                  token, expires)};
  };
  const std::string late = "2038-01-01T00:00:00Z";
  const auto tokens = [&] {
    std::string all;
    for (const Asked& asked : server.Take()) {
      all += asked.path == "/keys" ? "keys " : asked.Header("x-amz-security-token") + " ";
    }
    return all;
  };
  Set("AWS_MAX_ATTEMPTS", "3");
  for (const Answer& expired : {Failed(400, "ExpiredToken"), Failed(403, "TokenRefreshRequired")}) {
    Tell({keys("one", ""), expired, keys("two", ""), {.body = "x"}});
    EXPECT_EQ(Made().Get("o", 1000), "x");
    EXPECT_EQ(tokens(), "keys one keys two ");
    Tell({keys("one", ""), expired, keys("two", ""), expired});
    EXPECT_EQ(ErrorOf([&] { Made().Get("o", 1000); }).code(), ExitCode::kWorld);
    EXPECT_EQ(tokens(), "keys one keys two ");  // New keys are tried only once.
    // The new keys may have no token: then no token is sent, not even the old one.
    Tell({keys("one", ""), expired, keys("", ""), {.body = "x"}});
    EXPECT_EQ(Made().Get("o", 1000), "x");
    const std::vector<Asked> asked = server.Take();
    ASSERT_EQ(asked.size(), 4u);
    EXPECT_EQ(asked[1].Header("x-amz-security-token"), "one");
    EXPECT_FALSE(asked[3].headers.contains("x-amz-security-token"));
    EXPECT_EQ(asked[3].Header("authorization").find("x-amz-security-token"), std::string::npos);
  }
  Tell({keys("one", late), Failed(403, "AccessDenied")});
  EXPECT_EQ(ErrorOf([&] { Made().Get("o", 1000); }).code(), ExitCode::kUsage);
  EXPECT_EQ(tokens(), "keys one ");
  // The answer to HEAD has no error code. Keys without an expiration never expire.
  for (const int status : {400, 403}) {
    Tell({keys("one", late), {.status = status}, keys("two", late), {.headers = {{"ETag", "e"}}}});
    EXPECT_EQ(Made().Head("o")->etag, "e");
    EXPECT_EQ(tokens(), "keys one keys two ");
    Tell({keys("one", ""), {.status = status}});
    EXPECT_EQ(ErrorOf([&] { Made().Head("o"); }).code(), ExitCode::kWorld);
    EXPECT_EQ(tokens(), "keys one ");
  }
  Tell({keys("one", late), {.status = 401}});
  EXPECT_EQ(ErrorOf([&] { Made().Head("o"); }).code(), ExitCode::kWorld);
  EXPECT_EQ(tokens(), "keys one ");
}

TEST_F(StoreWithFixedAnswers, ObjectUrlsFollowBucketUrlAndEndpoint) {
  const auto line = [&](const std::string& url) {
    Tell({{.body = "x"}});
    Made(url).Get("x y", 10);
    const std::vector<Asked> asked = server.Take();
    return asked.at(0).target + " " + asked.at(0).Header("host");
  };
  EXPECT_EQ(line("s3://bucket/a"), "/bucket/a/x%20y " + server.host());
  EXPECT_EQ(line("s3://bucket"), "/bucket/x%20y " + server.host());
  Set("AWS_ENDPOINT_URL", server.url() + "/deep//");
  EXPECT_EQ(line("s3://bucket/a"), "/deep/bucket/a/x%20y " + server.host());
  // The variable for S3 comes first, then the one for all services, then the profile's key.
  const std::string config = Write("config", "[default]\nendpoint_url = http://127.0.0.1:1/no\n");
  Set("AWS_CONFIG_FILE", config);
  Set("AWS_ENDPOINT_URL_S3", server.url() + "/three");
  EXPECT_EQ(line("s3://bucket/a"), "/three/bucket/a/x%20y " + server.host());
  Set("AWS_ENDPOINT_URL_S3", "");
  EXPECT_EQ(line("s3://bucket/a"), "/deep/bucket/a/x%20y " + server.host());
  Set("AWS_ENDPOINT_URL", "");
  Write("config", "[default]\nendpoint_url = " + server.url() + "/of-profile\n");
  EXPECT_EQ(line("s3://bucket/a"), "/of-profile/bucket/a/x%20y " + server.host());
  // A group in the profile, such as another service's, is not the profile.
  const std::string services =
      "[services mine]\nsqs =\n  endpoint_url = http://127.0.0.1:1/no\ns3 =\n  endpoint_url = " +
      server.url() + "/of-services\n";
  Write("config", "[default]\nendpoint_url = " + server.url() +
                      "/of-profile\nsqs =\n  endpoint_url = http://127.0.0.1:1/no\n" + services);
  EXPECT_EQ(line("s3://bucket/a"), "/of-profile/bucket/a/x%20y " + server.host());
  Write("config", "[default]\nservices = mine\nendpoint_url = http://127.0.0.1:1/no\n" + services);
  EXPECT_EQ(line("s3://bucket/a"), "/of-services/bucket/a/x%20y " + server.host());
  Write("config", "[default]\nservices = other\n" + services);
  EXPECT_EQ(ErrorOf([&] { Made(); }).code(), ExitCode::kUsage);
  // AWS's own hosts get the bucket in the host's name if their certificates cover it.
  Write("config", "[default]\nregion = none\n");
  Set("http_proxy", server.url());
  const auto host = [&](const std::string& url) {
    Set("AWS_MAX_ATTEMPTS", "1");
    Set("https_proxy", server.url());
    Tell({{.status = 403}});
    const Error error = ErrorOf([&] { Made(url).Get("x", 10); });
    EXPECT_EQ(error.code(), ExitCode::kWorld);
    return server.Take().at(0).target;
  };
  EXPECT_EQ(host("s3://bucket/a"), "bucket.s3.eu-test-1.amazonaws.com:443");
  EXPECT_EQ(host("s3://buc.ket/a"), "s3.eu-test-1.amazonaws.com:443");
  Write("config", "[default]\ns3 =\n  addressing_style = path\n");
  EXPECT_EQ(host("s3://bucket/a"), "s3.eu-test-1.amazonaws.com:443");
  Write("config", "[default]\ns3 =\n  addressing_style = virtual\n");
  EXPECT_EQ(host("s3://buc.ket/a"), "s3.eu-test-1.amazonaws.com:443");
  const auto target = [&](const std::string& endpoint, const std::string& url) {
    Set("AWS_ENDPOINT_URL", endpoint);
    Tell({{.body = "x"}});
    EXPECT_EQ(Made(url).Get("o", 10), "x");
    return server.Take().at(0).target;
  };
  EXPECT_EQ(target("http://store.example", "s3://bucket/a"), "http://bucket.store.example/a/o");
  EXPECT_EQ(target("http://store.example", "s3://buc.ket/a"), "http://buc.ket.store.example/a/o");
  EXPECT_EQ(target("http://store.example", "s3://Bucket_1/a"), "http://store.example/Bucket_1/a/o");
  // A host given by its address has no subdomains.
  EXPECT_EQ(target(server.url(), "s3://bucket/a"), server.url() + "/bucket/a/o");
  Set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "True");
  Write("config", "[default]\nendpoint_url = http://127.0.0.1:1/no\n");
  EXPECT_EQ(host("s3://bucket/a"), "bucket.s3.eu-test-1.amazonaws.com:443");
  EXPECT_EQ(host("s3://Bucket_1/a"), "s3.eu-test-1.amazonaws.com:443");
  Set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "");
  Write("config", "[default]\n");
  // The region comes from the environment, then from the profile, then is AWS's first region.
  Set("AWS_ENDPOINT_URL", "");
  Set("AWS_REGION", "");
  EXPECT_EQ(host("s3://bucket/a"), "bucket.s3.us-east-1.amazonaws.com:443");
  Write("config", "[default]\nregion = of-profile\n");
  EXPECT_EQ(host("s3://bucket/a"), "bucket.s3.of-profile.amazonaws.com:443");
  Set("AWS_DEFAULT_REGION", "of-default");
  EXPECT_EQ(host("s3://bucket/a"), "bucket.s3.of-default.amazonaws.com:443");
}

TEST_F(StoreWithFixedAnswers, PutNewNeverReplacesAnObject) {
  Store store = Made();
  Tell({{}});
  EXPECT_TRUE(store.PutNew("o", "text", {{"claim", "c"}, {"z", "9"}}));
  const Asked asked = server.Take().at(0);
  EXPECT_EQ(asked.method + " " + asked.target, "PUT /bucket/a/o");
  EXPECT_EQ(asked.body, "text");
  EXPECT_EQ(asked.Header("if-none-match"), "*");
  EXPECT_EQ(asked.Header("x-amz-meta-claim") + asked.Header("x-amz-meta-z"), "c9");
  EXPECT_EQ(asked.Header("content-type"), "application/octet-stream");
  EXPECT_FALSE(asked.headers.contains("expect") || asked.headers.contains("accept"));
  EXPECT_TRUE(store.PutNew("o", ""));
  EXPECT_EQ(server.Take().at(0).Header("content-length"), "0");
  Tell({Failed(412)});
  EXPECT_FALSE(store.PutNew("o", "text"));
  for (const Answer& answer : {Failed(501), Failed(400, "NotImplemented")}) {
    Tell({answer});
    const Error error = ErrorOf([&] { store.PutNew("o", "text"); });
    EXPECT_STREQ(error.what(),
                 "cannot write `s3://bucket/a/o`: this store has no conditional writes "
                 "(`If-None-Match: *`), without which two runs could mix their files");
    EXPECT_EQ(error.hint(), "write to a local folder, and copy that with the store's own tool");
    EXPECT_EQ(error.code(), ExitCode::kUsage);
  }
  Tell({Failed(403, "AccessDenied")});
  EXPECT_STREQ(ErrorOf([&] { store.PutNew("o", "text"); }).what(),
               "cannot write `s3://bucket/a/o`: the store answered 403 AccessDenied");
}

TEST_F(StoreWithFixedAnswers, GetReadsObjectsUpToALimit) {
  Store store = Made();
  Tell({{.body = "<Error>of an object</Error>"}});
  EXPECT_EQ(store.Get("o", 27), "<Error>of an object</Error>");
  server.Take();
  EXPECT_STREQ(ErrorOf([&] { store.Get("o", 26); }).what(),
               "cannot read `s3://bucket/a/o`: the answer has more than 26 bytes");
  EXPECT_EQ(server.Take().size(), 1u);  // A retry would get as much.
  Tell({Failed(404, "NoSuchKey")});
  EXPECT_EQ(store.Get("o", 1000), std::nullopt);
  Tell({{.status = 404}});
  EXPECT_EQ(store.Get("o", 1000), std::nullopt);
  Tell({{.status = 204}});
  EXPECT_EQ(ErrorOf([&] { store.Get("o", 10); }).code(), ExitCode::kWorld);
}

TEST_F(StoreWithFixedAnswers, HeadReturnsSizeAndMetadata) {
  Set("AWS_MAX_ATTEMPTS", "1");
  Store store = Made();
  Tell({{.headers = {{"Content-Length", "5000000000"},
                     {"ETag", "\"e\""},
                     {"X-Amz-Meta-Claim", "c"},
                     {"x-amz-meta-", "none"},
                     {"x-amz-met", "no"}}}});
  const std::optional<ObjectInfo> info = store.Head("o");
  EXPECT_EQ(info->size, 5'000'000'000);
  EXPECT_EQ(info->etag, "\"e\"");
  EXPECT_EQ(info->metadata, (Metadata{{"claim", "c"}, {"", "none"}}));
  EXPECT_EQ(server.Take().at(0).method, "HEAD");
  Tell({{.status = 404}});
  EXPECT_FALSE(store.Head("o"));
  for (const int status : {403, 206, 301}) {
    Tell({{.status = status}});
    EXPECT_STREQ(
        ErrorOf([&] { store.Head("o"); }).what(),
        fmt::format("cannot look for `s3://bucket/a/o`: the store answered {}", status).c_str());
  }
}

TEST_F(StoreWithFixedAnswers, ReadsRangesOnlyOfTheKnownObject) {
  Set("AWS_MAX_ATTEMPTS", "1");
  Store store = Made();
  const auto part = [](const std::string& body, const std::string& range, int status = 206) {
    return Answer{
        .status = status, .body = body, .headers = {{"ETag", "e"}, {"Content-Range", range}}};
  };
  Tell({part("cdef", "bytes 2-5/10")});
  EXPECT_EQ(store.GetRange("o", "e", 2, 4), "cdef");
  const Asked asked = server.Take().at(0);
  EXPECT_EQ(asked.Header("range") + " " + asked.Header("if-match"), "bytes=2-5 e");
  EXPECT_EQ(store.GetRange("o", "e", 2, 0), "");
  EXPECT_EQ(ErrorOf([&] { store.GetRange("o", "", 2, 4); }).code(), ExitCode::kWorld);
  EXPECT_TRUE(server.Take().empty());
  Answer replaced = part("cdef", "bytes 2-5/10");
  replaced.headers["ETag"] = "f";
  for (const Answer& answer : {Failed(412), Failed(404, "NoSuchKey"), replaced}) {
    Tell({answer});
    const Error error = ErrorOf([&] { store.GetRange("o", "e", 2, 4); });
    EXPECT_STREQ(error.what(), "`s3://bucket/a/o` changed while it was read");
    EXPECT_EQ(error.hint(), "stop what writes to it, and run the same command again");
    EXPECT_EQ(error.code(), ExitCode::kWorld);
  }
  const std::pair<Answer, const char*> wrong[] = {
      {part("cdef", "bytes 2-50/100"), "4 bytes `bytes 2-50/100` arrived"},
      {part("cdef", "", 200), "4 bytes `` arrived"},
      {part("cde", "bytes 2-5/10"), "3 bytes `bytes 2-5/10` arrived"},
      {part("cdefg", "bytes 2-5/10"), "5 bytes `bytes 2-5/10` arrived"}};
  for (const auto& [answer, came] : wrong) {
    Tell({answer});
    EXPECT_EQ(
        ErrorOf([&] { store.GetRange("o", "e", 2, 4); }).what(),
        std::string("cannot read `s3://bucket/a/o`: 4 bytes `bytes 2-5/` were requested, but ") +
            came);
  }
  // An error's text may be longer than the requested range.
  Tell({Failed(403, "AccessDenied", std::string(60'000, 'x'))});
  EXPECT_TRUE(
      std::string(ErrorOf([&] { store.GetRange("o", "e", 2, 4); }).what())
          .starts_with("cannot read `s3://bucket/a/o`: the store answered 403 AccessDenied: xx"));
  Tell({Failed(416, "InvalidRange")});
  EXPECT_STREQ(ErrorOf([&] { store.GetRange("o", "e", 2, 4); }).what(),
               "cannot read `s3://bucket/a/o`: the store answered 416 InvalidRange");
}

TEST_F(StoreWithFixedAnswers, ListsObjectsPageByPage) {
  Set("AWS_MAX_ATTEMPTS", "1");
  Store store = Made();
  const auto page = [](const std::string& inner) {
    return Answer{.body = "<ListBucketResult>" + inner + "</ListBucketResult>"};
  };
  const auto object = [](const std::string& key, const std::string& size = "1") {
    return fmt::format("<Contents><Key>{}</Key><Size>{}</Size><ETag>e</ETag></Contents>", key,
                       size);
  };
  const std::string next = "<NextContinuationToken>t&amp;1</NextContinuationToken>";
  const std::vector<Answer> pages = {
      page(object("a/x/&lt;", "5000000000") + "<IsTruncated>true</IsTruncated>" + next),
      page("<IsTruncated>true</IsTruncated><NextContinuationToken>2</NextContinuationToken>"),
      page(object("a/x/y") + "<IsTruncated>false</IsTruncated>")};
  std::string found;
  const auto visit = [&](const std::string& name, const ObjectInfo& info) {
    found += fmt::format("{} {} {};", name, info.size, info.etag);
    return true;
  };
  Tell(pages);
  store.List("x/", visit);
  EXPECT_EQ(found, "x/< 5000000000 e;x/y 1 e;");
  const std::vector<Asked> asked = server.Take();
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[0].method + asked[0].path, "GET/bucket/");
  EXPECT_EQ(asked[0].query,
            (std::map<std::string, std::string>{{"list-type", "2"}, {"prefix", "a/x/"}}));
  EXPECT_EQ(asked[1].query,
            (std::map<std::string, std::string>{
                {"list-type", "2"}, {"prefix", "a/x/"}, {"continuation-token", "t&1"}}));
  // A list that may be incomplete is refused.
  const std::string cut = "<IsTruncated>true</IsTruncated>",
                    end = "<IsTruncated>false</IsTruncated>";
  const std::string whole = "cannot list `s3://bucket/a/x/`: the store's list may be incomplete: ";
  const struct {
    std::vector<Answer> pages;
    std::string why;
    size_t asked;
  } cases[] = {
      {{page(object("a/x/1") + cut)}, "it is not the last page, but names no next page", 1},
      {{page(object("a/x/1") + end + next)},
       "it is marked as the last page, but names a next page",
       1},
      {{page(object("a/x/1") + "<IsTruncated>maybe</IsTruncated>" + next)},
       "`IsTruncated` is `maybe`",
       1},
      {{page(object("a/x/1") + cut + next), page(object("a/x/2") + cut + next)},
       "it leads back to an earlier page",
       2},
      {{page(object("a/x/1") + cut + next), page(object("a/x/1") + end)},
       "it has `a/x/1` after `a/x/1`",
       2},
      {{page(object("a/x/2") + object("a/x/1") + end)}, "it has `a/x/1` after `a/x/2`", 1},
      {{page(object("a/y") + end)}, "it has `a/y`, which does not begin with `a/x/`", 1},
      {{page(object("a/x/1") + end + "<CommonPrefixes><Prefix>a/x/2/</Prefix></CommonPrefixes>")},
       "it has `CommonPrefixes`, which was not requested",
       1},
      {{page(end + "<EncodingType>url</EncodingType>")},
       "it has `EncodingType`, which was not requested",
       1},
  };
  for (const auto& each : cases) {
    Tell(each.pages);
    const Error error = ErrorOf([&] { store.List("x/", visit); });
    EXPECT_EQ(error.what(), whole + each.why);
    EXPECT_EQ(error.code(), ExitCode::kWorld);
    EXPECT_EQ(server.Take().size(), each.asked) << each.why;
  }
  std::vector<Answer> empty;
  for (int i = 0; i < 200; ++i) {
    empty.push_back(
        page(fmt::format("{}<NextContinuationToken>{}</NextContinuationToken>", cut, i)));
  }
  Tell(empty);
  EXPECT_EQ(ErrorOf([&] { store.List("x/", visit); }).what(),
            whole + "100 pages in a row are empty, and more follow");
  EXPECT_EQ(server.Take().size(), 100u);
  Tell({page(object("a/x/1", "none") + end)});
  EXPECT_STREQ(ErrorOf([&] { store.List("x/", visit); }).what(),
               "cannot list `s3://bucket/a/x/`: the store sent no size of `x/1`");
  Tell(pages);
  server.Take();
  store.List("x/", [&](const std::string&, const ObjectInfo&) { return false; });
  EXPECT_EQ(server.Take().size(), 1u);
  Tell({{.body = "<html>\x1bhello</html>" + std::string(300, 'x')}});
  EXPECT_EQ(
      ErrorOf([&] { store.List("p", visit); }).what(),
      "cannot list `s3://bucket/a/p`: the store's answer is not a list: <html>\\x1bhello</html>" +
          std::string(181, 'x'));
  Tell({Failed(403, "AccessDenied")});
  EXPECT_STREQ(ErrorOf([&] { store.List("p", visit); }).what(),
               "cannot list `s3://bucket/a/p`: the store answered 403 AccessDenied");
}

TEST_F(StoreWithFixedAnswers, ListsUploadsPageByPage) {
  Store store = Made();
  const auto page = [](const std::string& inner) {
    return Answer{.body = "<ListMultipartUploadsResult>" + inner + "</ListMultipartUploadsResult>"};
  };
  Tell({page("<Upload><Key>a/x</Key><UploadId>1</UploadId></Upload>"
             "<IsTruncated>true</IsTruncated><NextKeyMarker>k</"
             "NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"),
        page("<Upload><Key>a/y</Key><UploadId>3</UploadId></Upload><IsTruncated>false</IsTruncated>"
             "<NextKeyMarker>k</NextKeyMarker>")});
  std::string found;
  store.ListUploads(
      [&](const std::string& name, const std::string& upload) { found += name + upload + ";"; });
  EXPECT_EQ(found, "x1;y3;");
  const std::vector<Asked> asked = server.Take();
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].query,
            (std::map<std::string, std::string>{{"uploads", ""}, {"prefix", "a/"}}));
  EXPECT_EQ(
      asked[1].query,
      (std::map<std::string, std::string>{
          {"uploads", ""}, {"prefix", "a/"}, {"key-marker", "k"}, {"upload-id-marker", "u"}}));
  for (const auto& [next, why] :
       {std::pair("", "it is not the last page, but names no next page"),
        {"<NextKeyMarker>k</NextKeyMarker>", "it leads back to an earlier page"}}) {
    Tell({page(std::string("<IsTruncated>true</IsTruncated>") + next)});
    EXPECT_EQ(ErrorOf([&] { store.ListUploads({}); }).what(),
              "cannot list the uploads of `s3://bucket/a`: the store's list may be incomplete: " +
                  std::string(why));
  }
  Tell({{.body = ""}});
  EXPECT_STREQ(ErrorOf([&] { store.ListUploads({}); }).what(),
               "cannot list the uploads of `s3://bucket/a`: the store's answer is not a list: ");
}

TEST_F(StoreWithFixedAnswers, ReadsPublicObjectsWithoutCredentials) {
  Set("AWS_ACCESS_KEY_ID", "");
  Set("AWS_SECRET_ACCESS_KEY", "");
  Store store = Made();
  Tell({{.body = "x", .headers = {{"ETag", "e"}}}});
  EXPECT_EQ(store.Get("o", 10), "x");
  EXPECT_EQ(store.Head("o")->etag, "e");
  for (const Asked& asked : server.Take()) {
    EXPECT_FALSE(asked.headers.contains("authorization"));
    EXPECT_FALSE(asked.headers.contains("x-amz-security-token"));
  }
  for (const std::function<void()>& write : {std::function<void()>([&] { store.PutNew("o", "x"); }),
                                             {[&] { store.BeginUpload("o", {}); }},
                                             {[&] { store.EndUpload("o", "u"); }}}) {
    EXPECT_STREQ(ErrorOf(write).what(), "the bucket needs credentials, but none were found");
  }
  EXPECT_TRUE(server.Take().empty());
  for (const int status : {401, 403}) {
    Tell({Failed(status, "AccessDenied")});
    EXPECT_EQ(ErrorOf([&] { store.Get("o", 1000); }).what(),
              fmt::format("cannot read `s3://bucket/a/o`: the store answered {}, and no "
                          "credentials for the bucket were found",
                          status));
  }
}

TEST_F(StoreWithFixedAnswers, ErrorsContainNoSecrets) {
  const std::string token = "FwoGZXIvYXdzEJr//////////wEaDKq+LongSessionToken==";
  Set("AWS_SESSION_TOKEN", token);
  Set("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
  Store store = Made();
  for (const std::string& text : std::vector<std::string>{
           "token " + token + " is bad", "secret wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY is bad",
           "token " + UriEncoded(token) + " is bad", "cut " + token.substr(0, 30),
           "twice " + token + token}) {
    for (const Answer& answer :
         {Failed(400, "Bad", text), Failed(400, text), Answer{.body = text}}) {
      Tell({answer});
      const std::string what = ErrorOf([&] { store.List("", {}); }).what();
      EXPECT_NE(what.find("***"), what.npos) << what;
      for (const std::string& secret :
           {token, std::string("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")}) {
        for (size_t i = 0; i + 8 <= secret.size(); ++i) {
          EXPECT_EQ(what.find(secret.substr(i, 8)), what.npos) << what;
        }
      }
    }
  }
}

TEST_F(StoreWithFixedAnswers, BeginUploadSendsClaimAndReturnsId) {
  Store store = Made();
  const Answer begun = {.body =
                            "<InitiateMultipartUploadResult><UploadId>u/1</UploadId></"
                            "InitiateMultipartUploadResult>"};
  Tell({{.body = "   "}, begun});  // An answer without the required element is a failure.
  EXPECT_EQ(store.BeginUpload("o", {{"claim", "c"}}), "u/1");
  const Asked asked = server.Take().at(1);
  EXPECT_EQ(asked.method + " " + asked.target, "POST /bucket/a/o?uploads=");
  EXPECT_EQ(asked.Header("content-type"), "application/octet-stream");
  EXPECT_EQ(asked.Header("x-amz-meta-claim"), "c");
  EXPECT_EQ(asked.body, "");
  Tell({{.body = "<InitiateMultipartUploadResult><UploadId></UploadId></"
                 "InitiateMultipartUploadResult>"}});
  EXPECT_STREQ(ErrorOf([&] { store.BeginUpload("o", {}); }).what(),
               "cannot begin `s3://bucket/a/o`: the store started no upload");
  Answer created = begun;
  created.status = 201;
  for (const auto& [answer, status] : {std::pair(Failed(403), 403), {created, 201}}) {
    Tell({answer});
    EXPECT_EQ(ErrorOf([&] { store.BeginUpload("o", {}); }).what(),
              fmt::format("cannot begin `s3://bucket/a/o`: the store answered {}", status));
  }
}

TEST_F(StoreWithFixedAnswers, PutPartSendsAPartAndReturnsItsTag) {
  Set("AWS_MAX_ATTEMPTS", "1");
  Store store = Made();
  Tell({{.headers = {{"ETag", "\"e\""}}}});
  EXPECT_EQ(store.PutPart("o", "u/1", 17, "text"), "\"e\"");
  const Asked asked = server.Take().at(0);
  EXPECT_EQ(asked.method + " " + asked.target, "PUT /bucket/a/o?partNumber=17&uploadId=u%2F1");
  EXPECT_EQ(asked.body, "text");
  EXPECT_FALSE(asked.headers.contains("if-none-match"));
  Tell({Failed(404, "NoSuchUpload")});
  EXPECT_EQ(store.PutPart("o", "u", 1, "text"), std::nullopt);
  for (const Answer& answer : {Failed(404, "NoSuchBucket"), Failed(400, "NoSuchUpload")}) {
    Tell({answer});
    EXPECT_TRUE(std::string(ErrorOf([&] { store.PutPart("o", "u", 1, "text"); }).what())
                    .starts_with(fmt::format(
                        "cannot write `s3://bucket/a/o`: the store answered {}", answer.status)));
  }
  Tell({{}});
  EXPECT_STREQ(ErrorOf([&] { store.PutPart("o", "u", 1, "text"); }).what(),
               "cannot write `s3://bucket/a/o`: the store sent no ETag for a part");
}

TEST_F(StoreWithFixedAnswers, CompleteUploadRetriesUntilTheObjectIsMade) {
  Store store = Made();
  const Answer made = {
      .body = "<CompleteMultipartUploadResult><Key>k</Key></CompleteMultipartUploadResult>"};
  Tell({Failed(200, "InternalError"), made});
  EXPECT_EQ(store.CompleteUpload("o", "u", {"\"e\"", "f"}), Completion::kMade);
  const Asked asked = server.Take().at(1);
  EXPECT_EQ(asked.method + " " + asked.target, "POST /bucket/a/o?uploadId=u");
  EXPECT_EQ(asked.Header("if-none-match"), "*");
  EXPECT_EQ(asked.body,
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
            "<Part><PartNumber>1</PartNumber><ETag>\"e\"</ETag></Part>"
            "<Part><PartNumber>2</PartNumber><ETag>f</ETag></Part></CompleteMultipartUpload>");
  const std::pair<Answer, Completion> cases[] = {{Failed(412), Completion::kRefused},
                                                 {Failed(409), Completion::kRefused},
                                                 {Failed(404, "NoSuchUpload"), Completion::kGone}};
  for (const auto& [answer, completion] : cases) {
    Tell({answer});
    EXPECT_EQ(store.CompleteUpload("o", "u", {"e"}), completion) << answer.status;
    EXPECT_EQ(server.Take().size(), 1u);
  }
  for (const Answer& answer : {Failed(501), Failed(400, "NotImplemented")}) {
    Tell({answer});
    const Error error = ErrorOf([&] { store.CompleteUpload("o", "u", {"e"}); });
    EXPECT_STREQ(error.what(),
                 "cannot complete `s3://bucket/a/o`: this store has no conditional completion of "
                 "uploads (`If-None-Match: *`), without which two runs could mix their files");
    EXPECT_EQ(error.code(), ExitCode::kUsage);
  }
  for (const Answer& answer :
       {Failed(404, "NoSuchBucket"), Failed(400, "NoSuchUpload"), Failed(403)}) {
    Tell({answer});
    EXPECT_TRUE(std::string(ErrorOf([&] { store.CompleteUpload("o", "u", {"e"}); }).what())
                    .starts_with("cannot complete `s3://bucket/a/o`: the store answered 40"));
  }
}

TEST_F(StoreWithFixedAnswers, EndUploadAbortsTheUpload) {
  Set("AWS_MAX_ATTEMPTS", "1");
  Store store = Made();
  for (const int status : {204, 200, 404}) {
    Tell({{.status = status}});
    EXPECT_NO_THROW(store.EndUpload("o", "u"));
    const Asked asked = server.Take().at(0);
    EXPECT_EQ(asked.method + " " + asked.target, "DELETE /bucket/a/o?uploadId=u");
    EXPECT_FALSE(asked.headers.contains("content-type"));
  }
  Tell({Failed(403)});
  EXPECT_STREQ(ErrorOf([&] { store.EndUpload("o", "u"); }).what(),
               "cannot end an upload of `s3://bucket/a/o`: the store answered 403");
  server.Take();
  Tell({Failed(503)});
  EXPECT_EQ(ErrorOf([&] { store.EndUpload("o", "u", 2); }).code(), ExitCode::kWorld);
  EXPECT_EQ(server.Take().size(), 2u);
}

TEST_F(StoreWithFixedAnswers, HttpReadsHeadersUnchanged) {
  Http http;
  const Request request{.method = "GET", .scheme = "http", .host = server.host(), .path = "/x"};
  Tell({{.status = 418,
         .body = "tea",
         .headers = {{"X-AZ-@[`{", "  \t a: b \t "}, {"X-Empty", ""}, {"X-Early", "late"}},
         .raw = "HTTP/1.1 103 Early Hints\r\nX-Early: early\r\nX-Gone: x\r\n\r\n"}});
  const Response response = http.Send(request);
  EXPECT_EQ(response.status, 418);
  EXPECT_EQ(response.body, "tea");
  EXPECT_FALSE(response.is_hopeless);
  EXPECT_EQ(response.Header("x-az-@[`{"), "a: b");
  EXPECT_EQ(response.Header("x-empty"), "");
  EXPECT_TRUE(response.headers.contains("x-empty"));
  EXPECT_EQ(response.Header("x-early"), "late");
  EXPECT_FALSE(response.headers.contains("x-gone"));
  EXPECT_EQ(response.headers.size(), 4u);  // Including the length.
}

TEST_F(StoreWithFixedAnswers, HttpReusesConnectionsWithoutOldState) {
  Http http;
  Request request{.method = "PUT", .scheme = "http", .host = server.host(), .path = "/x"};
  request.headers = {{"x-a", "1"}, {"host", "another"}};
  request.body = "text";
  Tell({{.body = "answer"}});
  http.Send(request);
  request = {.method = "HEAD", .scheme = "http", .host = server.host(), .path = "/y/./../z"};
  EXPECT_EQ(http.Send(request).body, "");
  request.method = "GET";
  EXPECT_EQ(http.Send(request).body, "answer");
  request.method = "DELETE";
  EXPECT_EQ(http.Send(request).body, "answer");
  request.method = "POST";
  EXPECT_EQ(http.Send(request).body, "answer");
  const std::vector<Asked> asked = server.Take();
  ASSERT_EQ(asked.size(), 5u);
  EXPECT_EQ(asked[0].method + asked[0].body + asked[0].Header("x-a"), "PUTtext1");
  EXPECT_EQ(asked[0].Header("host"), server.host());
  for (size_t i = 1; i < asked.size(); ++i) {
    EXPECT_EQ(asked[i].target, "/y/./../z");
    EXPECT_EQ(asked[i].body + asked[i].Header("x-a"), "");
    EXPECT_EQ(asked[i].Header("content-length"), i == 4 ? "0" : "");
  }
  EXPECT_EQ(server.connections(), 1u);
}

TEST_F(StoreWithFixedAnswers, HttpDistinguishesPermanentFailures) {
  Http http;
  Request request{.method = "GET", .scheme = "http", .host = server.host(), .path = "/x"};
  const auto failed = [&](const HttpLimits& limits = {}) {
    const Response response = http.Send(request, limits);
    EXPECT_EQ(response.status, 0);
    EXPECT_NE(response.failure, "");
    EXPECT_EQ(response.failure.find("the answer has more than") == 0, limits.body == 4);
    return response.is_hopeless;
  };
  Tell({{.body = "12345"}});
  EXPECT_EQ(http.Send(request, {.body = 5}).body, "12345");
  EXPECT_TRUE(failed({.body = 4}));
  EXPECT_EQ(http.Send(request, {.body = 4}).failure, "the answer has more than 4 bytes");
  Tell({{.body = "12345", .promised = 6}});  // The last byte never comes.
  EXPECT_FALSE(failed());
  Tell({{.is_lost = true}});
  EXPECT_FALSE(failed());
  request.host = "127.0.0.1:1";
  EXPECT_FALSE(failed());
  EXPECT_NE(http.Send(request).failure.find("127.0.0.1"), std::string::npos);
  request.host = "127.0.0.1:99999";
  EXPECT_TRUE(failed());
  request.host = server.host();
  request.scheme = "none";
  EXPECT_TRUE(failed());
  request.scheme = "https";
  Set("AWS_CA_BUNDLE", "/nonexistent");
  EXPECT_TRUE(failed());
}

TEST_F(StoreWithFixedAnswers, HttpUsesNoProxyForThisMachine) {
  Http http;
  Set("http_proxy", server.url());
  Request request{.method = "GET", .scheme = "http", .host = "store.example", .path = "/x"};
  Tell({{}});
  EXPECT_EQ(http.Send(request).status, 200);
  EXPECT_EQ(server.Take().at(0).target, "http://store.example/x");
  request.host = "127.0.0.1:1";
  EXPECT_EQ(http.Send(request, {.is_direct = true}).status, 0);
  EXPECT_TRUE(server.Take().empty());
}

// A server of credential services, which answers by method and path.
class Services : public InEnvironment {
 protected:
  std::map<std::string, std::vector<Answer>> answers;

  HttpServer server{[this](const Asked& asked) {
    const std::lock_guard lock(mutex_);
    const auto found = answers.find(asked.method + " " + asked.target);
    if (found == answers.end()) return Answer{.status = 404, .body = "nothing"};
    const Answer answer = found->second.front();
    if (found->second.size() > 1) found->second.erase(found->second.begin());
    return answer;
  }};

  static Credentials Found() {
    Http http;
    return CredentialSource(&http).Get();
  }
  static Error NotFound() {
    return ErrorOf([] { Found(); });
  }
  static bool IsNone() { return Text(Found()) == "   0"; }
  static std::string Text(const Credentials& found) {
    return fmt::format("{} {} {} {}", found.key_id, found.secret, found.token, found.expires);
  }

 private:
  std::mutex mutex_;
};

// Credential sources have a fixed order: each is used only if the sources before it have none.
TEST_F(Services, CredentialSourcesHaveAFixedOrder) {
  const auto keys = [](const std::string& id) {
    return fmt::format(R"({{"AccessKeyId": "{}", "SecretAccessKey": "S"}})", id);
  };
  const std::string path = "/latest/meta-data/iam/security-credentials/";
  const auto identity = [](const std::string& id) {
    return fmt::format("<R><AccessKeyId>{}</AccessKeyId><SecretAccessKey>S</SecretAccessKey></R>",
                       id);
  };
  answers["PUT /latest/api/token"] = {{.body = "t"}};
  answers["GET " + path] = {{.body = "role"}};
  answers["GET " + path + "role"] = {{.body = keys("machine")}};
  answers["GET /container"] = {{.body = keys("container")}};
  answers["POST /"] = {{.body = identity("identity")}};
  Set("AWS_ENDPOINT_URL_STS", server.url());
  Set("AWS_EC2_METADATA_DISABLED", "");
  Set("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url());
  EXPECT_EQ(Found().key_id, "machine");
  Set("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/container");
  EXPECT_EQ(Found().key_id, "container");
  const std::string process =
      "credential_process = echo '{\"Version\": 1, " + keys("process").substr(1) + "'\n";
  Set("AWS_CONFIG_FILE", Write("config", "[default]\n" + process));
  EXPECT_EQ(Found().key_id, "process");
  const std::string both = process + "aws_access_key_id = profile\naws_secret_access_key = S\n";
  Write("config", "[default]\n" + both);
  EXPECT_EQ(Found().key_id, "process");  // as in botocore
  Write("config", "[default]\naws_access_key_id = profile\naws_secret_access_key = S\n");
  EXPECT_EQ(Found().key_id, "profile");
  Set("AWS_SHARED_CREDENTIALS_FILE",
      Write("credentials", "[default]\naws_access_key_id = shared\naws_secret_access_key = S\n"));
  Write("config", "[default]\n" + both);
  EXPECT_EQ(Found().key_id, "shared");
  Write("config", "[default]\n" + both + "web_identity_token_file = " +
                      Write("token", "of-profile") + "\nrole_arn = arn:p\n");
  server.Take();
  EXPECT_EQ(Found().key_id, "identity");
  EXPECT_NE(server.Take().at(0).body.find("arn%3Ap"), std::string::npos);
  Set("AWS_ROLE_ARN", "arn:e");
  Set("AWS_WEB_IDENTITY_TOKEN_FILE", Write("other", "of-environment"));
  EXPECT_EQ(Found().key_id, "identity");
  EXPECT_NE(server.Take().at(0).body.find("arn%3Ae"), std::string::npos);
  Set("AWS_ACCESS_KEY_ID", "environment");
  Set("AWS_SECRET_ACCESS_KEY", "S");
  EXPECT_EQ(Found().key_id, "environment");
  EXPECT_TRUE(server.Take().empty());
}

constexpr char kKeys[] =
    R"({"AccessKeyId": "A", "SecretAccessKey": "S", "Token": "T", "SessionToken": "ST",
        "Expiration": "2038-01-01T00:00:00Z"})";

TEST_F(Services, CompleteCredentialsInTheEnvironmentComeFirst) {
  Set("AWS_ACCESS_KEY_ID", "A");
  EXPECT_STREQ(NotFound().what(), "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not");
  EXPECT_EQ(NotFound().code(), ExitCode::kUsage);
  Set("AWS_SECRET_ACCESS_KEY", "S");
  EXPECT_EQ(Text(Found()), "A S  0");
  Set("AWS_SESSION_TOKEN", "T");
  EXPECT_EQ(Text(Found()), "A S T 0");
  Set("AWS_SECURITY_TOKEN", "U");
  EXPECT_EQ(Text(Found()), "A S U 0");
  Set("AWS_ACCESS_KEY_ID", "");
  EXPECT_TRUE(IsNone());
}

TEST_F(Services, ReadsCredentialsOfAWebIdentity) {
  const auto answer = [](const std::string& key, const std::string& secret) {
    return Answer{.body =
                      fmt::format("<R><Credentials><AccessKeyId>{}</AccessKeyId><SecretAccessKey>{}"
                                  "</SecretAccessKey><SessionToken>T</SessionToken><Expiration>"
                                  "2038-01-01T00:00:00Z</Expiration></Credentials></R>",
                                  key, secret)};
  };
  const std::string token = Write("token", "a.b/c\r\n\n");
  Set("AWS_WEB_IDENTITY_TOKEN_FILE", token);
  EXPECT_STREQ(NotFound().what(),
               "`token` is the token of a web identity, but its role is not set");
  EXPECT_EQ(NotFound().code(), ExitCode::kUsage);
  Set("AWS_ROLE_ARN", "arn:r/x");
  Set("AWS_WEB_IDENTITY_TOKEN_FILE", "");
  EXPECT_TRUE(IsNone());
  Set("AWS_WEB_IDENTITY_TOKEN_FILE", token);
  Set("AWS_ENDPOINT_URL_STS", server.url());
  answers["POST /"] = {answer("A", "S")};
  EXPECT_EQ(Text(Found()), "A S T 2145916800");
  Asked asked = server.Take().at(0);
  EXPECT_EQ(asked.body,
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Ar%2Fx"
            "&RoleSessionName=shardinit&WebIdentityToken=a.b%2Fc");
  EXPECT_EQ(asked.Header("content-type"), "application/x-www-form-urlencoded");
  Set("AWS_ROLE_SESSION_NAME", "me&");
  Set("AWS_ENDPOINT_URL_STS", "");
  Set("AWS_ENDPOINT_URL", server.url());
  Found();
  EXPECT_NE(server.Take().at(0).body.find("&RoleSessionName=me%26&"), std::string::npos);
  Write("token", "\n");
  server.Take();
  Found();
  EXPECT_TRUE(server.Take().at(0).body.ends_with("&WebIdentityToken="));
  for (const auto& [key, secret] : {std::pair("A", ""), {"", "S"}}) {
    answers["POST /"] = {answer(key, secret)};
    const Error error = NotFound();
    EXPECT_STREQ(error.what(), "STS for the role `arn:r/x` gave no credentials");
    EXPECT_EQ(error.code(), ExitCode::kWorld);
  }
  answers.clear();
  EXPECT_STREQ(NotFound().what(),
               "cannot get credentials from STS for the role `arn:r/x`: it answered 404: nothing");
  // A profile may set all of these, too.
  Set("AWS_WEB_IDENTITY_TOKEN_FILE", "");
  Set("AWS_ROLE_ARN", "");
  Set("AWS_ROLE_SESSION_NAME", "");
  Set("AWS_CONFIG_FILE", Write("config", "[default]\nweb_identity_token_file = " + token +
                                             "\nrole_arn = arn:p\nrole_session_name = s\n"));
  answers["POST /"] = {answer("A", "S")};
  server.Take();
  EXPECT_EQ(Text(Found()), "A S T 2145916800");
  EXPECT_NE(server.Take().at(0).body.find("&RoleArn=arn%3Ap&RoleSessionName=s&"),
            std::string::npos);
}

// The server is a proxy: it sees which hosts are requested, and none needs to exist.
TEST_F(Services, SendsNoTokenUnencryptedToOtherMachines) {
  Set("http_proxy", server.url());
  Set("AWS_WEB_IDENTITY_TOKEN_FILE", Write("token", "t"));
  Set("AWS_ROLE_ARN", "arn");
  for (const char* here : {"localhost", "localhost:80", "127.0.0.1", "127.255.0.9:8080", "[::1]",
                           "[::1]:80", "169.254.170.2", "169.254.170.2:80", "169.254.170.23",
                           "169.254.170.23:1", "[fd00:ec2::23]", "[fd00:ec2::23]:80"}) {
    Set("AWS_ENDPOINT_URL_STS", std::string("http://") + here + "/");
    EXPECT_STREQ(NotFound().what(),
                 "cannot get credentials from STS for the role `arn`: it answered 404: nothing")
        << here;
    EXPECT_EQ(server.Take().size(), 1u) << here;
  }
  for (const char* there :
       {"example.com", "localhost.example.com", "127.example.com", "127.0.0.1.example.com:80",
        "128.0.0.1", "[::2]", "[::1", "169.254.170.3", "169.254.170.2.com", "169.254.169.254",
        "[fd00:ec2::24]", "store:127.0.0.1", "xlocalhost:1"}) {
    const std::string url = std::string("http://") + there + "/";
    Set("AWS_ENDPOINT_URL_STS", url);
    const Error error = NotFound();
    EXPECT_EQ(error.what(),
              "the endpoint of STS is `" + url + "`, which is neither https nor on this machine");
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_TRUE(server.Take().empty()) << there;
  }
  Set("AWS_ENDPOINT_URL_STS", "");
  Set("AWS_ROLE_ARN", "");
  Set("AWS_WEB_IDENTITY_TOKEN_FILE", "");
  Set("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/");
  EXPECT_STREQ(
      NotFound().what(),
      "AWS_CONTAINER_CREDENTIALS_FULL_URI is `http://example.com/`, which is neither https nor "
      "on this machine");
}

TEST_F(Services, RetriesCredentialServices) {
  Set("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/keys?a=b");
  const Answer keys{.body = kKeys};
  for (const int status : {429, 500}) {
    answers["GET /keys?a=b"] = {{.status = status}, keys};
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(Text(Found()), "A S T 2145916800");
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(400));
    EXPECT_EQ(server.Take().size(), 2u);
  }
  for (const int status : {400, 403, 428, 499, 201}) {
    answers["GET /keys?a=b"] = {{.status = status, .body = std::string(501, 'x')}, keys};
    EXPECT_EQ(NotFound().what(),
              fmt::format("cannot get credentials from the container's service: it answered {}: {}",
                          status, std::string(500, 'x')));
    EXPECT_EQ(server.Take().size(), 1u);
  }
  answers["GET /keys?a=b"] = {{.status = 500},   {.status = 502},   {.status = 500},
                              {.is_lost = true}, {.is_lost = true}, keys};
  const std::string lost = NotFound().what();
  EXPECT_TRUE(lost.starts_with("cannot get credentials from the container's service: ")) << lost;
  EXPECT_EQ(lost.find("it answered"), lost.npos) << lost;
  EXPECT_EQ(server.Take().size(), 5u);  // libcurl asks again on a reused connection.
}

TEST_F(Services, ReadsCredentialsOfAContainer) {
  Set("http_proxy", "http://127.0.0.1:1");
  Set("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/keys");
  answers["GET /keys"] = {{.body = kKeys}};
  EXPECT_EQ(Text(Found()), "A S T 2145916800");
  EXPECT_FALSE(server.Take().at(0).headers.contains("authorization"));
  Set("AWS_CONTAINER_AUTHORIZATION_TOKEN", "in");
  Found();
  EXPECT_EQ(server.Take().at(0).Header("authorization"), "in");
  Set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", Write("token", "of a file\n"));
  Found();
  EXPECT_EQ(server.Take().at(0).Header("authorization"), "of a file");
  answers["GET /keys"] = {{.body = R"({"AccessKeyId": "A", "SecretAccessKey": "S"})"}};
  EXPECT_EQ(Text(Found()), "A S  0");
  answers["GET /keys"] = {{.body = R"({"AccessKeyId": "A", "SecretAccessKey": "S", "Token": null,
                                      "Expiration": null})"}};
  EXPECT_EQ(Text(Found()), "A S  0");
  answers["GET /keys"] = {{.body = R"({"AccessKeyId": "A", "SecretAccessKey": "S",
                                      "Expiration": "2038-01-01T01:30:00.5+01:30"})"}};
  EXPECT_EQ(Text(Found()), "A S  2145916800");
  answers["GET /keys"] = {{.body = R"({"AccessKeyId": "A", "SecretAccessKey": "S",
                                      "Expiration": "tomorrow"})"}};
  EXPECT_STREQ(
      NotFound().what(),
      "the container's service gave credentials that expire at `tomorrow`, which is not an "
      "RFC 3339 time");
  for (const char* wrong : {"{}", R"({"AccessKeyId": "A"})", R"({"SecretAccessKey": "S"})",
                            R"({"AccessKeyId": "", "SecretAccessKey": "S"})",
                            R"({"AccessKeyId": 1, "SecretAccessKey": "S"})"}) {
    answers["GET /keys"] = {{.body = wrong}};
    const Error error = NotFound();
    EXPECT_TRUE(
        std::string(error.what()).starts_with("the container's service gave no credentials: "))
        << error.what();
    EXPECT_EQ(error.code(), ExitCode::kWorld);
  }
}

TEST_F(Services, ReadsCredentialsOfAMachine) {
  const std::string path = "/latest/meta-data/iam/security-credentials/";
  Set("http_proxy", "http://127.0.0.1:1");
  Set("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url() + "//");
  Set("AWS_EC2_METADATA_DISABLED", "True");
  EXPECT_TRUE(IsNone());
  EXPECT_TRUE(server.Take().empty());
  Set("AWS_EC2_METADATA_DISABLED", "false");
  answers["PUT /latest/api/token"] = {{.status = 400}};
  EXPECT_TRUE(IsNone());
  EXPECT_EQ(server.Take().size(), 1u);  // No token is available.
  // Older services give credentials without tokens, unless this is forbidden.
  answers["GET " + path] = {{.body = "role"}};
  answers["GET " + path + "role"] = {{.body = kKeys}};
  answers["PUT /latest/api/token"] = {{.status = 405}};
  EXPECT_EQ(Text(Found()), "A S T 2145916800");
  EXPECT_FALSE(server.Take().at(2).headers.contains("x-aws-ec2-metadata-token"));
  Set("AWS_EC2_METADATA_V1_DISABLED", "true");
  EXPECT_TRUE(IsNone());
  EXPECT_EQ(server.Take().size(), 1u);
  answers["PUT /latest/api/token"] = {{.body = "t"}};
  answers["GET " + path] = {{.body = "role\nanother"}};
  answers["GET " + path + "role"] = {{.body = kKeys}};
  EXPECT_EQ(Text(Found()), "A S T 2145916800");
  const std::vector<Asked> asked = server.Take();
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[0].Header("x-aws-ec2-metadata-token-ttl-seconds"), "21600");
  EXPECT_EQ(asked[0].Header("content-type"), "text/plain");
  EXPECT_EQ(asked[1].Header("x-aws-ec2-metadata-token"), "t");
  EXPECT_EQ(asked[2].Header("x-aws-ec2-metadata-token"), "t");
  for (const char* none : {"", "\nrole"}) {
    answers["GET " + path] = {{.body = none}};
    EXPECT_TRUE(IsNone());
  }
  answers.erase("GET " + path);  // The machine has no role.
  EXPECT_TRUE(IsNone());
  answers["GET " + path] = {{.body = "role"}};
  answers["GET " + path + "role"] = {{.body = "{}"}};
  EXPECT_TRUE(std::string(NotFound().what())
                  .starts_with("the machine's metadata service gave no credentials: "));
}

TEST_F(Services, RenewsCredentialsFiveMinutesBeforeTheyExpire) {
  const auto keys = [](int seconds) {
    const std::time_t end = std::time(nullptr) + seconds;
    std::tm parts = {};
    gmtime_r(&end, &parts);
    char text[32];
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return Answer{
        .body = fmt::format(R"({{"AccessKeyId": "A", "SecretAccessKey": "S", "Expiration": "{}"}})",
                            text)};
  };
  Set("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/keys");
  // Some services only give credentials that expire soon; each request must not ask again.
  for (const auto& [seconds, asked] : {std::pair(290, 1u), {330, 1u}}) {
    answers["GET /keys"] = {keys(seconds)};
    Http http;
    CredentialSource source(&http);
    for (int i = 0; i < 3; ++i) source.Get();
    EXPECT_EQ(server.Take().size(), asked) << seconds;
  }
  answers["GET /keys"] = {{.body = R"({"AccessKeyId": "A", "SecretAccessKey": "S"})"}};
  {
    Http http;
    CredentialSource source(&http);
    for (int i = 0; i < 3; ++i) source.Get();
    EXPECT_EQ(server.Take().size(), 1u);
  }
  // The store may report that credentials have expired. A report about other credentials, replaced
  // since, has no effect.
  answers["GET /keys"] = {{.body = kKeys}};
  Http http;
  CredentialSource source(&http);
  const Credentials found = source.Get();
  source.Expire({"A", "S", "another"});
  source.Expire({"B", "S", found.token});
  source.Get();
  EXPECT_EQ(server.Take().size(), 1u);
  source.Expire(found);
  source.Get();
  EXPECT_EQ(server.Take().size(), 1u);
}

TEST_F(Services, ReadsCredentialsOfAProfile) {
  const std::string credentials = Write("credentials", "");
  Set("AWS_SHARED_CREDENTIALS_FILE", credentials);
  Set("AWS_CONFIG_FILE", Write("config", ""));
  const auto of = [&](const std::string& text) {
    Write("config", text);
    return Text(Found());
  };
  const auto not_of = [&](const std::string& text) {
    Write("config", text);
    return std::string(NotFound().what());
  };
  const std::string keys = "AWS_access_key_id: A\naws_secret_access_key=S\r\n";
  EXPECT_EQ(of("[default]\n" + keys), "A S  0");
  EXPECT_EQ(of(" [default] ; mine\n" + keys + "aws_session_token = T=1"), "A S T=1 0");
  EXPECT_EQ(of("#[other]\n[default]\n;aws_access_key_id = B\n#aws_access_key_id = C\n\n" + keys),
            "A S  0");
  EXPECT_EQ(of("[default]\n" + keys + "[other]\naws_session_token = T\n"), "A S  0");
  EXPECT_EQ(of("[DEFAULT]\naws_session_token = T\n[default]\n" + keys), "A S T 0");
  EXPECT_EQ(of("[default]\nsqs =\n  aws_access_key_id = B\n" + keys), "A S  0");
  EXPECT_EQ(not_of("[default]\naws_access_key_id = A\n"),
            "the profile in ~/.aws/config has a key of AWS and no `aws_secret_access_key`");
  for (const char* none : {"[default]\naws_secret_access_key = S\n", "[other]\n", ""}) {
    Write("config", none);
    EXPECT_TRUE(IsNone()) << none;
  }
  for (const auto& [text, why] :
       {std::pair(std::string("[default\n") + keys, "`config:1` is before the first section"),
        {keys, "`config:1` is before the first section"},
        {"[default]\nx\n", "`config:2` has no `KEY = VALUE`"},
        {"[default]\ns3 =\n\n  x\n", "`config:4` has no `KEY = VALUE`"},
        {"[default]\n" + keys + "aws_access_key_id = B\n",
         "`config:4` has the key `aws_access_key_id` again"},
        {"[default]\n[p]\n[default]\n", "`config:3` begins the section `default` again"}}) {
    EXPECT_EQ(not_of(text), why);
    EXPECT_EQ(NotFound().code(), ExitCode::kUsage);
  }
  // The credentials file comes first, and no key is taken from the other file. A profile's name in
  // the config file has a prefix.
  Write("credentials", "[default]\naws_access_key_id = A\n");
  EXPECT_EQ(not_of("[default]\naws_access_key_id = B\naws_secret_access_key = S\n"),
            "the profile in ~/.aws/credentials has a key of AWS and no `aws_secret_access_key`");
  Write("credentials",
        "[default]\naws_access_key_id = A\naws_secret_access_key = T\n[p]\nregion = x\n");
  EXPECT_EQ(of("[default]\naws_access_key_id = B\naws_secret_access_key = S\n"), "A T  0");
  Set("AWS_PROFILE", "p");
  EXPECT_EQ(of("[profile  'p']\naws_access_key_id = P\naws_secret_access_key = S\n"), "P S  0");
  Set("AWS_DEFAULT_PROFILE", "default");
  EXPECT_EQ(Text(Found()), "A T  0");
  Set("AWS_DEFAULT_PROFILE", "");
  Set("AWS_PROFILE", "none");
  EXPECT_EQ(
      not_of("[profile nones]\n[non]\n[none]\n"),
      "AWS_PROFILE is `none`, and neither ~/.aws/credentials nor ~/.aws/config has such a profile");
  EXPECT_EQ(NotFound().code(), ExitCode::kUsage);
  Set("AWS_PROFILE", "p");
  Write("config", "");
  EXPECT_TRUE(IsNone());
  for (const char* key :
       {"sso_session", "sso_start_url", "sso_account_id", "login_session", "role_arn"}) {
    EXPECT_EQ(not_of(fmt::format("[profile p]\n{} = x\ncredential_process = none\n", key)),
              fmt::format("the profile has `{}`, which only AWS's own tool supports", key));
    EXPECT_EQ(NotFound().code(), ExitCode::kUsage);
  }
  for (const char* key : {"source_profile", "credential_source"}) {
    EXPECT_EQ(not_of(fmt::format("[profile p]\nrole_arn = r\n{} = x\n", key)),
              fmt::format("the profile has `{}`, which only AWS's own tool supports", key));
  }
}

TEST_F(Services, ReadsCredentialsOfAProgram) {
  const std::string program = Write("program", "");
  Set("AWS_CONFIG_FILE",
      Write("config", "[default]\ncredential_process = sh " + program + " 1 2\n"));
  const auto of = [&](const std::string& text) {
    Write("program", text);
    return Text(Found());
  };
  const auto not_of = [&](const std::string& text) {
    Write("program", text);
    const Error error = NotFound();
    EXPECT_EQ(error.code(), ExitCode::kWorld);
    return std::string(error.what());
  };
  const std::string printed = std::string(R"({"Version": 1, )") + (kKeys + 1);
  const std::string says = "cat <<END\n" + printed + "\nEND\n";
  EXPECT_EQ(of("[ \"$1$2\" = 12 ] || exit 1\n" + says), "A S ST 2145916800");
  EXPECT_EQ(of("printf '%9000s' ''\n" + says), "A S ST 2145916800");
  // The last piece that is read has one byte.
  std::string line = printed;
  std::erase(line, '\n');
  EXPECT_EQ(of(fmt::format("printf '%{}s' ''\nprintf %s '{}'\n", 8193 - line.size(), line)),
            "A S ST 2145916800");
  const std::string name = fmt::format("`sh {} 1 2`", program);
  const std::string failed =
      name + ", the `credential_process` of the profile, failed with status ";
  EXPECT_EQ(not_of(says + "exit 7\n"), failed + "7");
  EXPECT_EQ(not_of(says + "kill -9 $$\n"), failed + "137");  // The shell reports the signal.
  Write("config", "[default]\ncredential_process = cat <<END; kill -9 $$\n");
  EXPECT_EQ(NotFound().what(),
            std::string("`cat <<END; kill -9 $$`, the `credential_process` of the profile, "
                        "failed with status 128"));
  Write("config", "[default]\ncredential_process = sh " + program + " 1 2\n");
  EXPECT_TRUE(not_of("echo '{}'\n").starts_with(name + " gave no credentials: "));
  const std::string wrong = "`Version` in the output of " + name + " must be 1, but is ";
  for (const auto& [version, is] : {std::pair("\"Version\": 2,", "2"), {"", "missing"}}) {
    Write("program", fmt::format("echo '{{{} \"AccessKeyId\": \"A\", "
                                 "\"SecretAccessKey\": \"S\"}}'\n",
                                 version));
    EXPECT_EQ(NotFound().what(), wrong + is);
    EXPECT_EQ(NotFound().code(), ExitCode::kUsage);
  }
}

// A server that keeps the objects that are put there.
class KeptObjects : public InEnvironment {
 protected:
  // Returns the requests, such as `PUT a/x?partNumber,uploadId`, with sorted names.
  std::vector<std::string> Log() {
    std::vector<std::string> log;
    for (const Asked& asked : server.Take()) {
      std::string line = asked.method + " " + asked.path.substr(8);
      for (const auto& [name, value] : asked.query)
        line += (line.find('?') == line.npos ? "?" : ",") + name;
      log.push_back(line);
    }
    return log;
  }

  MemoryStore kept;
  HttpServer server{[this](const Asked& asked) { return kept(asked); }};
  Store store = [this] {
    PointTo(server);
    return Store(ParseBucketUrl("s3://bucket/a"));
  }();
};

TEST_F(KeptObjects, FirstClaimOfAFolderWins) {
  PutClaim(store, "c", "mine", {{"k", "v"}});
  EXPECT_EQ(kept.objects["a/c"].bytes, "mine");
  EXPECT_EQ(kept.objects["a/c"].metadata["x-amz-meta-k"], "v");
  EXPECT_EQ(Log().size(), 2u);
  PutClaim(store, "c", "another");  // The caller compares.
  EXPECT_EQ(kept.objects["a/c"].bytes, "mine");
  EXPECT_EQ(Log().size(), 1u);
  kept.knows_conditions = false;
  const Error error = ErrorOf([&] { PutClaim(store, "c", "mine"); });
  EXPECT_STREQ(
      error.what(),
      "the store of `s3://bucket/a` ignores the condition `If-None-Match: *`: two runs could "
      "mix their files there");
  EXPECT_EQ(error.hint(), "write to a local folder, and copy that with the store's own tool");
  EXPECT_EQ(error.code(), ExitCode::kUsage);
}

TEST_F(KeptObjects, ChecksThatTheStoreSupportsConditionalUploads) {
  kept.Put("a/c", "mine");
  RequireConditionalUploads(store, "c", "mine", {{"k", "v"}});
  EXPECT_TRUE(kept.uploads.empty());
  EXPECT_EQ(Log(), (std::vector<std::string>{"POST a/c?uploads", "PUT a/c?partNumber,uploadId",
                                             "POST a/c?uploadId", "DELETE a/c?uploadId"}));
  // An upload that another process ends proves nothing and is tried again.
  int left = 4;
  const auto ends = [&](const char* method) {
    return [&left, method](const Asked& asked, Answer* answer) {
      if (asked.method != method || !asked.query.contains("uploadId") || left == 0) return false;
      --left;
      *answer = MemoryStore::Failure(404, "NoSuchUpload");
      return true;
    };
  };
  for (const char* method : {"PUT", "POST"}) {
    left = 4;
    kept.fault = ends(method);
    RequireConditionalUploads(store, "c", "mine");
    EXPECT_EQ(left, 0);
    left = 5;
    const Error error = ErrorOf([&] { RequireConditionalUploads(store, "c", "mine"); });
    EXPECT_EQ(left, 0);
    EXPECT_STREQ(error.what(), "another process keeps aborting uploads to `s3://bucket/a`");
    EXPECT_EQ(error.code(), ExitCode::kWorld);
  }
  kept.fault = nullptr;
  kept.knows_conditions = false;
  const Error error = ErrorOf([&] { RequireConditionalUploads(store, "c", "mine", {{"k", "v"}}); });
  EXPECT_STREQ(
      error.what(),
      "the store of `s3://bucket/a` ignores the condition `If-None-Match: *` when an upload of "
      "parts is completed: two runs could mix their files there");
  EXPECT_EQ(error.code(), ExitCode::kUsage);
  EXPECT_EQ(kept.objects["a/c"].bytes, "mine");
  EXPECT_EQ(kept.objects["a/c"].metadata["x-amz-meta-k"], "v");
}

TEST_F(KeptObjects, PutTextWritesOrComparesAnObject) {
  PutText(store, "t", "text");
  EXPECT_EQ(kept.objects["a/t"].bytes, "text");
  EXPECT_EQ(Log(), (std::vector<std::string>{"PUT a/t"}));
  PutText(store, "t", "text");
  EXPECT_EQ(Log(), (std::vector<std::string>{"PUT a/t", "GET a/t"}));
  for (const char* other : {"tex", "texts", ""}) {
    const Error error = ErrorOf([&] { PutText(store, "t", other); });
    EXPECT_STREQ(error.what(), "`s3://bucket/a/t` already exists with different content");
    EXPECT_EQ(error.code(), ExitCode::kConflict);
  }
  EXPECT_EQ(kept.objects["a/t"].bytes, "text");
  // Another process removes the object between the PUT and the GET.
  int left = 4;
  kept.fault = [&](const Asked& asked, Answer* answer) {
    if (left == 0) return false;
    if (asked.method == "GET") --left;
    *answer = asked.method == "GET" ? MemoryStore::Failure(404, "NoSuchKey")
                                    : MemoryStore::Failure(412, "");
    return true;
  };
  PutText(store, "u", "new");
  EXPECT_EQ(kept.objects["a/u"].bytes, "new");
  left = 5;
  const Error error = ErrorOf([&] { PutText(store, "v", "new"); });
  EXPECT_STREQ(error.what(), "another process keeps removing `s3://bucket/a/v`");
  EXPECT_EQ(error.code(), ExitCode::kWorld);
}

TEST_F(KeptObjects, LargeObjectsAreReadInOrder) {
  constexpr size_t kPiece = 8 << 20;
  std::string bytes(5 * kPiece + 5, '\0');
  for (size_t i = 0; i < bytes.size(); i += 4093)
    bytes[i] = static_cast<char>(i * 2654435761u >> 24);
  for (const size_t size : {bytes.size(), kPiece, size_t{1}, size_t{0}}) {
    kept.Put("a/o", bytes.substr(0, size));
    std::string read;
    for (const int at_once : {1, 2, 4, 9}) {
      read.clear();
      const ObjectInfo info = *store.Head("o");
      ReadObject(store, "o", info, 0, info.size, at_once,
                 [&](std::string_view piece) { read += piece; });
      EXPECT_TRUE(read == bytes.substr(0, size)) << size;
      EXPECT_EQ(Log().size(), 1 + (size + kPiece - 1) / kPiece);
    }
  }
  const BucketPlace place("s3://bucket/a");
  for (int jobs = 1; jobs < 20; ++jobs) {
    for (const int64_t objects : {0, 1, 3, 100}) {
      const Readers readers = SplitReaders(place, objects, jobs);
      EXPECT_LE(readers.files * readers.in_file, jobs);
      EXPECT_TRUE(readers.files >= 1 && readers.in_file >= 1);
    }
  }
  kept.Put("a/o", "now");
  const ObjectInfo info = *store.Head("o");
  kept.Put("a/o", "new");
  EXPECT_STREQ(
      ErrorOf([&] { ReadObject(store, "o", info, 0, 3, 4, [](std::string_view) {}); }).what(),
      "`s3://bucket/a/o` changed while it was read");
}

TEST_F(KeptObjects, ListingsMatchATreeOfObjects) {
  for (const char* key : {"t/a/x", "t/a/y/z", "t/a-b", "t/a0", "t/b", "t/folder/", "t//odd",
                          "t/./x", "t/..", "t/new\nline", "tt", "t.x", "u"}) {
    kept.Put(key, key);
  }
  kept.page = 3;
  kept.bucket = "bucket-" + server.host().substr(server.host().find(':') + 1);
  const std::string url = "s3://" + kept.bucket;
  BucketTree& tree = BucketTree::Of(url + "/t/");
  EXPECT_EQ(&BucketTree::Of(url + "/t"), &tree);
  EXPECT_EQ(&BucketTree::Of(url + "/t/a/y"), &tree);
  EXPECT_NE(&BucketTree::Of(url + "/tt"), &tree);
  const auto walked = [](const BucketTree& of, const std::string& from,
                         const std::string& skipped = "") {
    std::string names;
    of.Walk(from, [&](const std::string& name, bool is_folder) {
      names += name + (is_folder ? "/ " : " ");
      return name != skipped;
    });
    return names;
  };
  EXPECT_EQ(walked(tree, url + "/t"), "a-b a/ a/x a/y/ a/y/z a0 b folder/ new\nline ");
  EXPECT_EQ(walked(tree, url + "/t/", "a"), "a-b a/ a0 b folder/ new\nline ");
  EXPECT_EQ(walked(tree, url + "/t", "a/y"), "a-b a/ a/x a/y/ a0 b folder/ new\nline ");
  EXPECT_EQ(&BucketTree::Of(url + "/t/new\nline"), &tree);
  EXPECT_EQ(tree.Read(url + "/t/new\nline", 0, 3), "t/n");
  EXPECT_EQ(walked(tree, url + "/t/a//"), "x y/ y/z ");
  EXPECT_EQ(walked(tree, url + "/t/b"), "");
  EXPECT_EQ(tree.Find(url + "/t/a/x")->size, 5);
  EXPECT_EQ(tree.Find(url + "/t/a"), nullptr);
  EXPECT_EQ(tree.Find(url + "/tt"), nullptr);
  EXPECT_TRUE(tree.IsFolder(url + "/t/a") && tree.IsFolder(url + "/t/a/y/"));
  EXPECT_FALSE(tree.IsFolder(url + "/t/b") || tree.IsFolder(url + "/t/a/x") ||
               tree.IsFolder(url + "/t/c"));
  EXPECT_EQ(tree.Read(url + "/t/a/y/z", 2, 4), "a/y/");
  kept.Put("t/b", "new");
  EXPECT_EQ(tree.Find(url + "/t/b")->size, 3);
  EXPECT_EQ(ErrorOf([&] { tree.Read(url + "/t/b", 0, 1); }).code(), ExitCode::kWorld);
  // A URL may be a single object or the whole bucket.
  BucketTree& one = BucketTree::Of(url + "/u");
  EXPECT_EQ(one.Find(url + "/u")->size, 1);
  EXPECT_EQ(BucketTree::Of(url + "/none").Find(url + "/none"), nullptr);
  BucketTree& all = BucketTree::Of(url);
  EXPECT_EQ(walked(all, url, "t"), "t.x t/ tt u ");
  EXPECT_TRUE(all.IsFolder(url));
  EXPECT_EQ(&BucketTree::Of(url + "/new"), &all);
}

// LacksRank() finds whether any rank lacks its file or its receipt.
TEST_F(KeptObjects, LacksRankFindsMissingFilesAndReceipts) {
  const BucketPlace place("s3://bucket/a");
  const auto lacks = [&](int64_t world_size, int64_t near = 0) {
    return LacksRank(place, world_size, near);
  };
  for (unsigned there = 0; there < 16; ++there) {
    kept.objects.clear();
    // These files belong to no rank.
    for (const char* other :
         {"a/ranks/rank-1.h5", "a/ranks/rank-00005.h5", "a/rank-00002.h5", "a/ranks/rank-1.json",
          "a/ranks/rank-x.json", "a/ranks/rank-00005.json", "a/rank-00002.json"}) {
      kept.Put(other, "");
    }
    for (int64_t rank = 0; rank < 4; ++rank) kept.Put("a/" + RankFile(rank), "");
    for (int64_t rank = 0; rank < 4; ++rank) {
      if (there >> rank & 1) kept.Put("a/" + ReceiptFile(rank), "");
    }
    for (int64_t ranks = 1; ranks <= 4; ++ranks) {
      const unsigned all = (1u << ranks) - 1;
      for (int64_t near = 0; near < ranks; ++near) {
        EXPECT_EQ(lacks(ranks, near), (there & all) != all) << there << " " << ranks;
      }
    }
    const auto file = kept.objects.extract("a/" + RankFile(1));
    EXPECT_EQ(lacks(1), (there & 1) != 1) << there;
    for (int64_t ranks = 2; ranks <= 4; ++ranks) EXPECT_TRUE(lacks(ranks)) << there << " " << ranks;
  }
  kept.objects.clear();
  constexpr int64_t kRanks = 1'012;  // on several pages
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    kept.Put("a/" + RankFile(rank), "");
    kept.Put("a/" + ReceiptFile(rank), "");
  }
  EXPECT_FALSE(lacks(kRanks));
  EXPECT_TRUE(lacks(kRanks + 1));
  for (const int64_t rank : {int64_t{499}, int64_t{1'005}}) {
    for (const std::string& name : {ReceiptFile(rank), RankFile(rank)}) {
      const auto one = kept.objects.extract("a/" + name);
      EXPECT_TRUE(lacks(kRanks)) << name;
      kept.Put("a/" + name, "");
    }
  }
}

// The pattern's length is prime, so each position in a box has different neighbours.
const std::string kPattern = [] {
  std::string bytes(1'000'003, '\0');
  uint32_t x = 1;
  for (char& c : bytes) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24 | 1);
  return bytes;
}();

// A file of boxes with texts between them, which contain the boxes' CRCs if `has_crcs`.
struct FileOfBoxes {
  FileOfBoxes(const std::vector<int64_t>& sizes, int64_t gap, bool has_crcs) {
    tensor.Edit().dtype = DType::u8;
    layout.path = "f";
    layout.head = "head of the file";
    int64_t at = std::ssize(layout.head) + (has_crcs ? 8 : 0);
    if (has_crcs) layout.crcs.push_back({std::ssize(layout.head), sizes.size() - 1});
    for (size_t b = 0; b < sizes.size(); ++b) {
      layout.boxes.push_back({&tensor, {{0}, {sizes[b]}}, at});
      at += sizes[b];
      layout.texts.push_back({at, fmt::format("<{}>", b)});
      at += 3;
      if (has_crcs) layout.crcs.push_back({at, b});
      crcs.push_back(static_cast<uint32_t>(0x9e3779b9u * (b + 1)));
      at += has_crcs ? 4 : 0;
      at += gap;
    }
    layout.end = at;
    bytes.assign(static_cast<size_t>(layout.size()), '\0');
    const auto put = [&](int64_t offset, std::string_view text) {
      bytes.replace(static_cast<size_t>(offset), text.size(), text);
    };
    put(0, layout.head);
    for (const FileText& text : layout.texts) put(text.offset, text.bytes);
    for (const CrcPlace& crc : layout.crcs) {
      put(crc.offset, {reinterpret_cast<const char*>(&crcs[crc.box]), 4});
    }
    for (const FileBox& box : layout.boxes) {
      for (int64_t at = 0; at < BytesOf(box); at += std::ssize(kPattern)) {
        put(box.offset + at, kPattern.substr(0, static_cast<size_t>(BytesOf(box) - at)));
      }
    }
  }

  // Writes the boxes in this order, each in pieces of `piece` bytes.
  void Write(const ObjectWriter& object, const std::vector<size_t>& order, int64_t piece) const {
    for (const size_t b : order) {
      const FileBox& box = layout.boxes[b];
      for (int64_t at = 0; at < BytesOf(box); at += piece) {
        const int64_t size = std::min(piece, BytesOf(box) - at);
        EXPECT_EQ(object.Write(bytes.data() + box.offset + at, size, box.offset + at), 0);
      }
    }
  }

  // The object is called `o`.
  FileOutline Outline(std::map<std::string, std::string> metadata = {}) const {
    FileOutline outline = OutlineFile(layout);
    outline.path = "o";
    outline.metadata = std::move(metadata);
    return outline;
  }

  Tensor tensor;
  FileLayout layout;
  std::vector<uint32_t> crcs;
  std::string bytes;
};

constexpr int64_t kLeastPart = 8 << 20;

TEST_F(KeptObjects, ObjectWriterAcceptsBoxesInAnyOrder) {
  const struct {
    std::vector<int64_t> sizes;
    int64_t gap;
  } cases[] = {
      {{5, 1, 7}, 3},
      {{kLeastPart - 26}, 0},          // one part, up to the last byte if it has CRCs
      {{kLeastPart - 17}, 0},          // with a text across the border
      {{kLeastPart - 19, 9, 3}, 0},    // with a text up to the border
      {{kLeastPart - 31, 20, 5}, 0},   // with a CRC up to the border
      {{kLeastPart - 29, 20, 40}, 0},  // with a CRC across the border
      {{100, 2 * kLeastPart + 5, 7}, 5},
      {{9, 4, 1}, kLeastPart},  // with parts without boxes
  };
  for (const auto& [sizes, gap] : cases) {
    for (const auto& [has_crcs, is_backward] :
         {std::pair(false, false), {true, false}, {true, true}}) {
      const std::string what = fmt::format("{} {} {} {}", sizes[0], gap, has_crcs, is_backward);
      const FileOfBoxes file(sizes, gap, has_crcs);
      std::vector<size_t> order(sizes.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = is_backward ? order.size() - 1 - i : i;
      kept.objects.clear();
      ObjectWriter object(&store, file.Outline({{"k", "v"}}), &file.crcs);
      EXPECT_EQ(object.has_parts(), std::ssize(file.bytes) > kLeastPart) << what;
      file.Write(object, order, is_backward ? kLeastPart + 12345 : kLeastPart);
      EXPECT_TRUE(kept.objects.empty()) << what;
      bool is_asked = false;
      EXPECT_TRUE(object.Complete([&] {
        is_asked = true;
        EXPECT_TRUE(kept.objects.empty()) << what;
      })) << what;
      EXPECT_TRUE(is_asked) << what;
      EXPECT_TRUE(kept.objects["a/o"].bytes == file.bytes) << what;
      EXPECT_EQ(kept.objects["a/o"].metadata["x-amz-meta-k"], "v") << what;
      EXPECT_TRUE(kept.uploads.empty()) << what;
      // Each part is sent once, and nothing else is sent.
      const size_t parts = file.bytes.size() / kLeastPart + (file.bytes.size() % kLeastPart != 0);
      EXPECT_EQ(Log().size(), parts == 1 ? 1 : parts + 2) << what;
    }
  }
}

TEST_F(KeptObjects, UnfinishedUploadsAreAborted) {
  const FileOfBoxes file({kLeastPart, kLeastPart}, 0, false);
  {
    const ObjectWriter object(&store, file.Outline());
    file.Write(object, {0}, kLeastPart);
    EXPECT_EQ(kept.uploads.size(), 1u);
  }
  EXPECT_TRUE(kept.uploads.empty() && kept.objects.empty());
  Log();
  // An unavailable store does not delay the error: it is asked once.
  {
    const ObjectWriter object(&store, file.Outline());
    kept.fault = [](const Asked&, Answer* answer) {
      *answer = MemoryStore::Failure(503, "SlowDown");
      return true;
    };
  }
  EXPECT_EQ(Log(), (std::vector<std::string>{"POST a/o?uploads", "DELETE a/o?uploadId"}));
  kept.fault = nullptr;
  kept.uploads.clear();
  // If completing is refused, the object does not get its name.
  {
    ObjectWriter object(&store, file.Outline());
    file.Write(object, {0, 1}, kLeastPart);
    EXPECT_EQ(
        ErrorOf([&] { object.Complete([] { throw Error(ExitCode::kConflict, "lost"); }); }).code(),
        ExitCode::kConflict);
  }
  EXPECT_TRUE(kept.uploads.empty() && kept.objects.empty());
  // Another writer has made the object.
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{9}, {kLeastPart, kLeastPart}}) {
    const FileOfBoxes other(sizes, 0, false);
    kept.objects.clear();
    {
      ObjectWriter object(&store, other.Outline());
      for (size_t b = 0; b < sizes.size(); ++b) other.Write(object, {b}, kLeastPart);
      kept.Put("a/o", "another");
      EXPECT_FALSE(object.Complete());
    }
    EXPECT_EQ(kept.objects["a/o"].bytes, "another");
    EXPECT_TRUE(kept.uploads.empty());
  }
  // Another process has ended the upload: nothing more is sent, and the callback is not called.
  kept.objects.clear();
  Log();
  {
    ObjectWriter object(&store, file.Outline());
    kept.uploads.clear();
    file.Write(object, {0, 1}, kLeastPart);
    bool is_asked = false;
    EXPECT_FALSE(object.Complete([&] { is_asked = true; }));
    EXPECT_FALSE(is_asked);
  }
  EXPECT_EQ(Log(), (std::vector<std::string>{"POST a/o?uploads", "PUT a/o?partNumber,uploadId"}));
}

}  // namespace
}  // namespace shardinit
