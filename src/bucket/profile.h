// What AWS's shared files say of a profile: ~/.aws/credentials and ~/.aws/config.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

namespace shardinit {

// The value of an environment variable; empty: it is not set.
std::string Environment(const char* name);

// Returns the first text that is not empty, or an empty one.
std::string FirstOf(std::initializer_list<std::string> values);

// Returns whether a setting is `true`, in any case.
bool IsTrue(std::string_view setting);

// Keys are in lower case. A key of a group below another one has that one's name before its own,
// such as `s3.addressing_style`.
using ProfileKeys = std::map<std::string, std::string>;

struct Profile {
  ProfileKeys of_credentials;  // what `credentials` alone says
  ProfileKeys of_config;       // what `config` alone says
  ProfileKeys services;        // the section of `config` that the profile's key `services` names
  ProfileKeys all;             // of both files; `credentials` comes first

  // Returns an empty text if neither file has the key.
  std::string Get(const std::string& key) const;
  // Returns the URL that the environment or the profile has for a service such as `s3`, as botocore
  // finds it; empty: AWS's own. Throws Error (kUsage) if the profile names services that are not
  // there.
  std::string EndpointOf(const std::string& service) const;
};

// Reads the profile that AWS_DEFAULT_PROFILE or AWS_PROFILE names, or `default`, as botocore does.
// Throws Error (kUsage) if neither file has the profile that is named, or a file is not in this
// format.
Profile ReadProfile();

}  // namespace shardinit
