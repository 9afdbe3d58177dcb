#include "bucket/url.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace shardinit {
namespace {

bool IsInBucketName(char c) { return IsAlphanumeric(c) || c == '.' || c == '-' || c == '_'; }

}  // namespace

std::string BucketUrl::text() const {
  return fmt::format("{}{}{}{}", kBucketScheme, bucket, prefix.empty() ? "" : "/", prefix);
}

std::string BucketUrl::KeyOf(std::string_view name) const {
  return prefix.empty() ? std::string(name) : fmt::format("{}/{}", prefix, name);
}

std::string BucketUrl::UrlOf(std::string_view name) const {
  return fmt::format("{}/{}", text(), name);
}

std::string HostIn(std::string host, std::string_view region, std::string_view other) {
  // The bucket's name, which comes first, may contain the region's name.
  const std::string end = fmt::format(".{}.amazonaws.com", region);
  if (host.ends_with(end)) host.replace(host.size() - end.size() + 1, region.size(), other);
  return host;
}

bool IsBucketUrl(std::string_view path) { return path.starts_with(kBucketScheme); }

bool IsUrl(std::string_view path) {
  return IsBucketUrl(path) || path.starts_with(kHubScheme) || path.starts_with("https://") ||
         path.starts_with("http://");
}

std::string NormalUrl(std::string url) {
  if (IsBucketUrl(url)) return ParseBucketUrl(url).text();
  while (url.ends_with('/') && !url.ends_with("://")) url.pop_back();
  return url;
}

BucketUrl ParseBucketUrl(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return Error(ExitCode::kUsage,
                 fmt::format("`{}` does not name a folder in a bucket: {}", Escape(path), why),
                 "write `s3://BUCKET/PREFIX`");
  };
  std::string_view rest = std::string_view(path).substr(kBucketScheme.size());
  BucketUrl url;
  url.bucket = rest.substr(0, rest.find('/'));
  rest.remove_prefix(std::min(rest.size(), url.bucket.size() + 1));
  while (rest.ends_with('/')) rest.remove_suffix(1);
  url.prefix = rest;
  if (url.bucket.size() < 3 || url.bucket.size() > 63 ||
      !std::all_of(url.bucket.begin(), url.bucket.end(), IsInBucketName)) {
    throw refuse(
        fmt::format("a bucket has a name of 3 to 63 letters, digits, dots and hyphens, not {}",
                    Quote(url.bucket)));
  }
  // Some stores, and HTTP clients on the way, normalize such names.
  for (size_t begin = 0; begin < rest.size();) {
    const size_t end = std::min(rest.find('/', begin), rest.size());
    const std::string_view part = rest.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") {
      throw refuse(fmt::format("a part of its prefix is {}", Quote(part)));
    }
    begin = end + 1;
  }
  if (std::any_of(rest.begin(), rest.end(),
                  [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; })) {
    throw refuse("its prefix has a control character");
  }
  if (rest.size() > 900) {
    throw refuse(fmt::format("its prefix has {} bytes, but at most 900 are allowed", rest.size()));
  }
  return url;
}

}  // namespace shardinit
