// What AWS's shared files say of a profile: ~/.aws/credentials and ~/.aws/config.
#pragma once

#include <map>
#include <string>

namespace shardinit {

// The value of an environment variable; empty: it is not set.
std::string Environment(const char* name);

// Returns the keys of the profile that AWS_PROFILE names, or of `default`, those of `credentials`
// first. Throws Error (kUsage) if AWS_PROFILE names one that neither file has.
std::map<std::string, std::string> ReadProfile();

}  // namespace shardinit
