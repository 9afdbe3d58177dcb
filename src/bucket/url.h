// Recognizes URLs; parses and builds names of folders in buckets: `s3://BUCKET/PREFIX`.
#pragma once

#include <string>
#include <string_view>

namespace shardinit {

inline constexpr std::string_view kBucketScheme = "s3://";
inline constexpr std::string_view kHubScheme = "hf://";

struct BucketUrl {
  std::string bucket;
  std::string prefix;  // without slashes at its ends; empty: the whole bucket

  std::string text() const;                        // `s3://BUCKET/PREFIX`
  std::string KeyOf(std::string_view name) const;  // of an object in the folder
  std::string UrlOf(std::string_view name) const;  // for messages
};

bool IsBucketUrl(std::string_view path);  // of a place that can be written
// Returns whether files are read from this path by requests: from a bucket, from the Hub of Hugging
// Face or from a web server.
bool IsUrl(std::string_view path);
// Returns the URL in the form that other URLs are compared with. Throws Error (kUsage) if it names
// no folder in a bucket.
std::string NormalUrl(std::string url);

// Returns the host in another region of AWS. Hosts of other stores do not change.
std::string HostIn(std::string host, std::string_view region, std::string_view other);

// Throws Error (kUsage) if `path` is not the name of a folder in a bucket.
BucketUrl ParseBucketUrl(const std::string& path);

}  // namespace shardinit
