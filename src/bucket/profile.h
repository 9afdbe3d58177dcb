// Reads a profile from AWS's shared files, ~/.aws/credentials and ~/.aws/config.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

namespace shardinit {

// Returns an environment variable; empty if it is not set.
std::string Environment(const char* name);

// Returns the first text that is not empty, or an empty one.
std::string FirstOf(std::initializer_list<std::string> values);

// Expands `~` and `$NAME` in a path as the tools of AWS and Hugging Face do: files of service
// managers and containers may contain them.
std::string ExpandedPath(const std::string& given);

// Returns a text without spaces at its ends.
std::string_view Trimmed(std::string_view text);

// Returns whether a setting is `true`, in any case.
bool IsTrue(std::string_view setting);

// Keys are in lower case. A nested key is prefixed with its group, such as `s3.addressing_style`.
using ProfileKeys = std::map<std::string, std::string>;

struct Profile {
  ProfileKeys of_credentials;  // from `credentials` only
  ProfileKeys of_config;       // from `config` only
  ProfileKeys services;        // the section of `config` that the profile's key `services` names
  ProfileKeys all;             // from both files; `credentials` has priority

  // Returns an empty text if neither file has the key.
  std::string Get(const std::string& key) const;
  // Returns the URL that the environment or the profile sets for a service such as `s3`, as
  // botocore does; empty means AWS's own. Throws Error (kUsage) if the profile names `services`
  // that do not exist.
  std::string EndpointOf(const std::string& service) const;
};

// Reads the profile that AWS_DEFAULT_PROFILE or AWS_PROFILE names, or `default`, as botocore does.
// Throws Error (kUsage) if neither file has the named profile, or a file is malformed.
Profile ReadProfile();

}  // namespace shardinit
