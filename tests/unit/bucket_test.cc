// Known answers for requests to object stores: signatures, encodings, answers.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <cctype>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mount.h"
#include "base/sha256.h"
#include "bucket/credentials.h"
#include "bucket/signature.h"
#include "bucket/url.h"
#include "bucket/web.h"
#include "bucket/xml.h"
#include "checkpoint/file_tasks.h"
#include "place/object_writer.h"

namespace shardinit {
namespace {

// RFC 4231, cases 1, 2, 3 and 6.
TEST(HmacSha256, HmacMatchesRfc4231) {
  EXPECT_EQ(ToHex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(ToHex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(ToHex(HmacSha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(ToHex(HmacSha256(std::string(131, '\xaa'),
                             "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacSha256, HmacHashesKeysLongerThanABlock) {
  for (const size_t size : {size_t{63}, size_t{64}, size_t{65}, size_t{200}}) {
    const std::string key(size, 'k');
    const Digest digest = Sha256Of(key);
    const std::string shorter(reinterpret_cast<const char*>(digest.data()), digest.size());
    EXPECT_EQ(HmacSha256(key, "x") == HmacSha256(shorter, "x"), size > 64) << size;
  }
}

TEST(UriEncoded, UriEncodingKeepsOnlyUnreservedCharacters) {
  for (int c = 0; c < 256; ++c) {
    const std::string text(1, static_cast<char>(c));
    const bool is_kept = c < 128 && (std::isalnum(c) != 0 ||
                                     std::string_view("-._~").find(text) != std::string_view::npos);
    const std::string encoded = fmt::format("%{:02X}", c);
    EXPECT_EQ(UriEncoded(text), is_kept ? text : encoded);
    EXPECT_EQ(UriEncoded(text, true), is_kept || c == '/' ? text : encoded);
  }
}

constexpr std::time_t kTime = 1369353600;  // 2013-05-24T00:00:00Z

std::string SignatureOf(Request request) {
  request.scheme = "https";
  request.host = "examplebucket.s3.amazonaws.com";
  Sign({"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}, "us-east-1", "s3",
       kTime, &request);
  const std::string& text = request.headers["authorization"];
  EXPECT_TRUE(text.starts_with(
      "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "));
  return text.substr(text.rfind('=') + 1);
}

// The examples of "Signature Calculations for the Authorization Header" in the reference of S3.
TEST(Sign, SignaturesMatchTheS3Reference) {
  EXPECT_EQ(
      SignatureOf({.method = "GET", .path = "/test.txt", .headers = {{"range", "bytes=0-9"}}}),
      "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(SignatureOf({.method = "PUT",
                         .path = "/test$file.text",
                         .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                     {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                         .body = "Welcome to Amazon S3."}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(SignatureOf({.method = "GET", .path = "/", .query = {{"lifecycle", ""}}}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(
      SignatureOf({.method = "GET", .path = "/", .query = {{"prefix", "J"}, {"max-keys", "2"}}}),
      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(Sign, SignaturesUseUtc) {
  const char* const before = std::getenv("TZ");
  const std::string zone = before == nullptr ? "" : before;
  for (const char* const other : {"XXX-14", "XXX+12", "UTC0"}) {
    setenv("TZ", other, 1);
    tzset();
    EXPECT_EQ(SignatureOf({.method = "GET", .path = "/", .query = {{"lifecycle", ""}}}),
              "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")
        << other;
  }
  if (before == nullptr) {
    unsetenv("TZ");
  } else {
    setenv("TZ", zone.c_str(), 1);
  }
  tzset();
}

TEST(Request, RequestUrlsAreEncoded) {
  const Request request{.method = "GET",
                        .scheme = "http",
                        .host = "h:9000",
                        .path = "/b/a b/ü+&=%~",
                        .query = {{"z", "1/2"}, {"a", ""}}};
  EXPECT_EQ(request.url(), "http://h:9000/b/a%20b/%C3%BC%2B%26%3D%25~?a=&z=1%2F2");
}

TEST(RequestFor, RequestForSplitsUrls) {
  const Request request = RequestFor("GET", "http://127.0.0.1:51679/v2/c?id=1&x", "X");
  EXPECT_EQ(request.host, "127.0.0.1:51679");
  EXPECT_EQ(request.path, "/v2/c");
  EXPECT_EQ(request.url(), "http://127.0.0.1:51679/v2/c?id=1&x=");
  EXPECT_EQ(RequestFor("GET", "https://host", "X").url(), "https://host/");
  const std::pair<const char*, const char*> cases[] = {
      {"https://h?a=b=c&=d", "https://h/?=d&a=b%3Dc"}, {"https://h/?", "https://h/"},
      {"https://h/p/?b=&a=1&", "https://h/p/?a=1&b="}, {"https://h?", "https://h/"},
      {"https://h/p?/q?r", "https://h/p?%2Fq%3Fr="},   {"http://[::1]:8/&", "http://[::1]:8/%26"},
  };
  for (const auto& [url, sent] : cases) EXPECT_EQ(RequestFor("GET", url, "X").url(), sent) << url;
  for (const char* wrong :
       {"host:80", "ftp://host", "", "http", "https", "htt://host", "xhttp://host", "httpss://h"}) {
    EXPECT_THROW(RequestFor("GET", wrong, "X"), Error) << wrong;
  }
}

TEST(TimeOf, ReadsOffsetsAndFractions) {
  for (const char* same :
       {"2013-05-24T00:00:00Z", "2013-05-24t00:00:00z", "2013-05-24 00:00:00Z",
        "2013-05-24T00:00:00+00:00", "2013-05-24T00:00:00-00:00", "2013-05-24T01:00:00+01:00",
        "2013-05-23T20:30:00-03:30", "2013-05-24T00:00:00.999999999Z",
        "2013-05-24T05:45:00.5+05:45", "2013-05-24T05:45:00+0545", "2013-05-24T02:00:00+02",
        "2013-05-23T00:01:00-23:59"}) {
    EXPECT_EQ(TimeOf(same), kTime) << same;
  }
  EXPECT_EQ(TimeOf("2016-12-31T23:59:60Z"), TimeOf("2016-12-31T23:59:59Z"));
  EXPECT_EQ(TimeOf("2012-02-29T00:00:00Z"), 1330473600);
  EXPECT_EQ(TimeOf("0001-01-01T00:00:00Z"), -62135596800);
  EXPECT_EQ(TimeOf("1970-01-01T00:00:00Z"), 1);  // 0 would mean never.
  for (const char* wrong : {"",
                            "x",
                            "2013-05-24",
                            "2013-05-24T00:00:00",
                            "2013-05-24T00:00Z",
                            "2013-05-24T00:00:00.Z",
                            "2013-05-24T00:00:00ZZ",
                            "2013-05-24T00:00:00Z ",
                            " 2013-05-24T00:00:00Z",
                            "2013-05-24T00:00:00+1",
                            "2013-05-24T00:00:00+01:",
                            "2013-05-24T00:00:00+010",
                            "2013-05-24T00:00:00Z+01:00",
                            "2013-05-24T00:00:00+24:00",
                            "2013-05-24T00:00:00+00:60",
                            "2013-13-24T00:00:00Z",
                            "2013-00-24T00:00:00Z",
                            "2013-02-29T00:00:00Z",
                            "2013-05-32T00:00:00Z",
                            "2013-05-00T00:00:00Z",
                            "2013-05-24T24:00:00Z",
                            "2013-05-24T00:60:00Z",
                            "2013-05-24T00:00:61Z",
                            "1369353600",
                            "20130524T000000Z",
                            "2013/05/24T00:00:00Z",
                            "2013-05-24x00:00:00Z"}) {
    EXPECT_FALSE(TimeOf(wrong)) << wrong;
  }
}

TEST(BucketUrl, ParsesBucketUrlsAndRejectsOthers) {
  const BucketUrl url = ParseBucketUrl("s3://bucket/a/b c/");
  EXPECT_EQ(url.bucket, "bucket");
  EXPECT_EQ(url.KeyOf("ranks/x"), "a/b c/ranks/x");
  EXPECT_EQ(url.UrlOf("x"), "s3://bucket/a/b c/x");
  EXPECT_EQ(ParseBucketUrl("s3://bucket").KeyOf("x"), "x");
  EXPECT_EQ(ParseBucketUrl("s3://bucket/").text(), "s3://bucket");
  for (const char* wrong : {"s3://", "s3:///a", "s3://ab/c", "s3://b?c/d", "s3://bucket/a//b",
                            "s3://bucket/./a", "s3://bucket/..", "s3://bucket//a"}) {
    EXPECT_THROW(ParseBucketUrl(wrong), Error) << wrong;
  }
  EXPECT_TRUE(IsBucketUrl("s3://x") && !IsBucketUrl("./s3://x") && !IsBucketUrl("gs://x"));
}

TEST(IsUrl, OnlyBucketsCanBeWritten) {
  for (const char* url : {"s3://x", "hf://a/b", "https://x", "http://x"}) EXPECT_TRUE(IsUrl(url));
  for (const char* path : {"gs://x", "./hf://a/b", "hf:/a", "x/https://", ""}) {
    EXPECT_FALSE(IsUrl(path)) << path;
  }
  EXPECT_FALSE(IsBucketUrl("hf://a/b"));
  EXPECT_EQ(NormalUrl("hf://a/b//"), "hf://a/b");
  EXPECT_EQ(NormalUrl("https://"), "https://");
}

TEST(ResolvedUrl, ReferencesAreResolvedAsInRfc3986) {
  const std::string url = "https://host:1/a/b?c=/d";
  EXPECT_EQ(ResolvedUrl(url, "x"), "https://host:1/a/x");
  EXPECT_EQ(ResolvedUrl(url, "/x?y=http://z"), "https://host:1/x?y=http://z");
  EXPECT_EQ(ResolvedUrl(url, "//other/x"), "https://other/x");
  EXPECT_EQ(ResolvedUrl(url, "http://other/x"), "http://other/x");
  EXPECT_EQ(ResolvedUrl("https://host", "x"), "https://host/x");
  EXPECT_EQ(ResolvedUrl(url, "?d"), "https://host:1/a/b?d");
}

TEST(OriginOf, OriginsHaveHostAndPort) {
  EXPECT_EQ(OriginOf("https://host:1/a"), "https://host:1");
  EXPECT_EQ(OriginOf("https://host?x"), "https://host");
  EXPECT_EQ(OriginOf("https://"), "https://");
  EXPECT_EQ(OriginOf("x"), "x");
}

TEST(RequireWebUrl, RejectsUrlsThatClientsReadDifferently) {
  for (const char* url : {"https://host", "https://host:1/x%20y", "http://localhost:1/x",
                          "http://127.0.0.1/x", "http://[::1]:1/x"}) {
    EXPECT_NO_THROW(RequireWebUrl(url, "it", url)) << url;
  }
  for (const char* url :
       {"http://host/x", "http://localhost.host/x", "http://127.0.0.1.host/x", "https://",
        "https:///x", "https://a@b/x", "https://a\\@b/x", "https://a b/x", "https://a/\n",
        "ftp://a/x", "HTTPS://a/x", "http://a@localhost/x", "http://127.0.0.1:1@host/x", "x", ""}) {
    EXPECT_THROW(RequireWebUrl(url, "it", url), Error) << url;
  }
}

TEST(RequireSafeName, RejectsNamesThatLeadOutOfAFolder) {
  for (const char* name : {"x", "a/b", "..x", "x..", "a/.b", "\u00fc", "a b", "100%"}) {
    EXPECT_NO_THROW(RequireSafeName(name, "it")) << name;
  }
  for (const char* name : {"", "/", "/x", "x/", "..", "a/..", "../a", "a/../b", ".", "a/./b",
                           "a//b", "a\n", "\x1b", "\xff", "\u202e"}) {
    EXPECT_THROW(RequireSafeName(name, "it"), Error) << name;
  }
}

TEST(BucketUrl, BucketUrlsHaveLimits) {
  const auto is_taken = [](const std::string& url) {
    try {
      ParseBucketUrl(url);
      return true;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kUsage);
      return false;
    }
  };
  for (size_t size = 0; size < 70; ++size) {
    EXPECT_EQ(is_taken("s3://" + std::string(size, 'b') + "/x"), size >= 3 && size <= 63) << size;
  }
  for (int c = 0; c < 256; ++c) {
    const bool is_in_name = c < 128 && (std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_');
    const std::string text(1, static_cast<char>(c));
    EXPECT_EQ(is_taken("s3://bu" + text + "cket"), is_in_name) << c;
    EXPECT_EQ(is_taken("s3://bucket/a" + text + "b"), c >= ' ' && c != 0x7f) << c;
  }
  for (const size_t size : {size_t{1}, size_t{900}, size_t{901}}) {
    EXPECT_EQ(is_taken("s3://bucket/" + std::string(size, 'p') + "//"), size <= 900) << size;
  }
  for (const char* good :
       {"s3://bucket/a/", "s3://bucket/..a/b..", "s3://bucket/.../x", "s3://bucket/a/b//"}) {
    EXPECT_TRUE(is_taken(good)) << good;
  }
  for (const char* bad :
       {"s3://bucket/a/./b", "s3://bucket/../b", "s3://bucket/a/..", "s3://bucket/a///b"}) {
    EXPECT_FALSE(is_taken(bad)) << bad;
  }
}

TEST(HostIn, HostInChangesOnlyTheRegion) {
  const auto moved = [](const char* host) { return HostIn(host, "us-east-1", "eu-west-1"); };
  EXPECT_EQ(moved("s3.us-east-1.amazonaws.com"), "s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(moved("models-us-east-1.s3.us-east-1.amazonaws.com"),
            "models-us-east-1.s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(moved("us-east-1.example.com"), "us-east-1.example.com");
  EXPECT_EQ(moved("127.0.0.1:9000"), "127.0.0.1:9000");
}

// Each of these once took time quadratic in its length: minutes.
TEST(Xml, HostileXmlIsParsedInLinearTime) {
  constexpr size_t kTimes = 1'000'000;
  const auto many = [](std::string_view text) {
    std::string all;
    for (size_t i = 0; i < kTimes; ++i) all += text;
    return all;
  };
  for (const std::string& xml :
       {many("<Keys"), many("<Keys") + ">", many("<Key "), many("<Key ") + "/>"}) {
    EXPECT_TRUE(XmlElements(xml, "Key").empty());
  }
  const std::string text = many("&");
  EXPECT_EQ(XmlText("<Key>" + text + "</Key>", "Key"), text);
}

TEST(Xml, FindsXmlElements) {
  const std::string xml =
      "<?xml version=\"1.0\"?>\n<L xmlns=\"x\"><Keys>n</Keys><Key>a&amp;b&#39;&#xfc;</Key>"
      "<Empty/><C ><Key>2</Key></C></L>";
  EXPECT_EQ(XmlText(xml, "Key"), "a&b'ü");
  EXPECT_EQ(XmlElements(xml, "Key").size(), 2u);
  EXPECT_EQ(XmlText(xml, "Keys"), "n");
  EXPECT_EQ(XmlText(xml, "Empty"), "");
  EXPECT_EQ(XmlText(xml, "None"), "");
  EXPECT_EQ(XmlElements(xml, "L").size(), 1u);
  for (const char* torn : {"<Key>a", "<Key", "<Key>a</Ke", "", "<Key/>"}) {
    EXPECT_EQ(XmlText(torn, "Key"), "") << torn;
  }
}

TEST(Xml, DecodesXmlCharactersToUtf8) {
  const std::pair<unsigned, const char*> codes[] = {{0x1, "\x01"},
                                                    {0x7f, "\x7f"},
                                                    {0x80, "\xc2\x80"},
                                                    {0x7ff, "\xdf\xbf"},
                                                    {0x800, "\xe0\xa0\x80"},
                                                    {0xffff, "\xef\xbf\xbf"},
                                                    {0x10000, "\xf0\x90\x80\x80"},
                                                    {0x10ffff, "\xf4\x8f\xbf\xbf"}};
  for (const auto& [code, text] : codes) {
    const std::string around = fmt::format("[{}]", text);
    EXPECT_EQ(XmlText(fmt::format("<K>[&#{};]</K>", code), "K"), around) << code;
    EXPECT_EQ(XmlText(fmt::format("<K>[&#x{:x};]</K>", code), "K"), around) << code;
    EXPECT_EQ(XmlText(fmt::format("<K>[&#x{:08X};]</K>", code), "K"), around) << code;
  }
  EXPECT_EQ(XmlText("<K>&lt;&gt;&amp;&quot;&apos;&none;;</K>", "K"), "<>&\"';");
  EXPECT_EQ(XmlText("<K>&lt&#60 &x&</K>", "K"), "&lt&#60 &x&");
  EXPECT_EQ(XmlText("<K>&aaaaaaaaaa;&aaaaaaaaaaa;</K>", "K"), "&aaaaaaaaaaa;");
  EXPECT_EQ(XmlText("<K\na='1'>x</K><K>y</K>", "K"), "x");
  EXPECT_EQ(XmlText("<Kx>n</Kx><K />\n<K/><K>y</K>", "K"), "y");
}

TEST(FindMount, FindsMountsInTheKernelsList) {
  constexpr char kMounts[] =
      "22 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw\n"
      "90 22 0:51 / /mnt/a\\040b rw,nosuid - fuse.rclone remote:bucket/x rw,user_id=0\n"
      "91 22 0:52 / /mnt/s3 rw - fuse mountpoint-s3 rw\n"
      "torn 0:53\n";
  const auto rclone = FindMount(kMounts, makedev(0, 51));
  ASSERT_TRUE(rclone);
  EXPECT_EQ(rclone->place, "/mnt/a b");
  EXPECT_EQ(rclone->type, "fuse.rclone");
  EXPECT_EQ(rclone->source, "remote:bucket/x");
  EXPECT_EQ(FindMount(kMounts, makedev(0, 52))->source, "mountpoint-s3");
  EXPECT_EQ(FindMount(kMounts, makedev(8, 1))->type, "ext4");
  EXPECT_FALSE(FindMount(kMounts, makedev(0, 53)));
  EXPECT_FALSE(FindMount("", 0));
}

// Escapes in fields are decoded, and the first line for a device wins.
TEST(FindMount, DecodesEscapesInMountFields) {
  const auto found = [](const std::string& line) {
    const std::optional<Mount> mount =
        FindMount(line + "\n1 1 0:7 / /later rw - later later rw\n", makedev(0, 7));
    return mount ? mount->place + "|" + mount->type + "|" + mount->source : "none";
  };
  EXPECT_EQ(found("9 1 0:7 / /a\\040b\\011c\\134d\\012e rw - t\\040t s\\040s rw"),
            "/a b\tc\\d\ne|t t|s s");
  EXPECT_EQ(found("9 1 0:7 / /a\\ rw shared:1 - t s"), "/a\\|t|s");
  EXPECT_EQ(found("9 1 0:7 / /\\04\\048\\0400 rw - t s"), "/\\04\\048 0|t|s");
  for (const char* torn : {"9 1 0:7 / /a rw t s rw", "9 1 0:7 / /a rw - t", "9 1 0:7", "",
                           "9 1 0:70 / /a rw - t s rw", "9 1 10:7 / /a rw - t s rw"}) {
    EXPECT_EQ(found(torn), "/later|later|later") << torn;
  }
}

TEST(IsOfObjectStore, RecognizesMountedObjectStores) {
  for (const auto& [type, source] : {std::pair("fuse.rclone", "r:b"),
                                     {"fuse.gcsfuse", "b"},
                                     {"fuse.s3fs", "s3fs"},
                                     {"fuse", "mountpoint-s3"}}) {
    EXPECT_TRUE(IsOfObjectStore({"/mnt", type, source})) << type;
  }
  for (const auto& [type, source] : {std::pair("fuse", "s3fs"),
                                     {"fuse.sshfs", "r:b"},
                                     {"ext4", "/dev/sda1"},
                                     {"nfs4", "fuse.rclone"},
                                     {"fuse.bindfs", "/back"},
                                     {"mountpoint-s3", "x"}}) {
    EXPECT_FALSE(IsOfObjectStore({"fuse.s3fs", type, source})) << type;
  }
}

TEST(PartBytes, PartSizeGivesAtMostTenThousandParts) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(PartBytes(0), 8 * kMiB);
  EXPECT_EQ(PartBytes(80'000 * kMiB), 8 * kMiB);
  EXPECT_EQ(PartBytes(80'000 * kMiB + 1), 9 * kMiB);
  for (int64_t size = 1; size < int64_t{1} << 45; size = size * 3 + 1) {
    EXPECT_LE((size + PartBytes(size) - 1) / PartBytes(size), 10'000) << size;
  }
}

TEST(ForEachGap, ForEachGapVisitsAllBytesOutsideBoxes) {
  Tensor tensor;
  tensor.Edit().dtype = DType::u8;
  FileLayout layout{.path = "x", .head = "head"};
  layout.boxes = {{&tensor, {{0}, {3}}, 10}, {&tensor, {{0}, {2}}, 6}};
  layout.texts = {{.offset = 13, .bytes = "ab"}, {.offset = 17, .bytes = "c"}};
  layout.end = 20;
  std::string gaps;
  ForEachGap(OutlineFile(layout), [&](std::string_view bytes) { gaps += bytes; });
  EXPECT_EQ(gaps, std::string("head\0\0\0\0ab\0\0c\0\0", 15));
}

}  // namespace
}  // namespace shardinit
