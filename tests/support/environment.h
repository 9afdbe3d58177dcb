// Sets up the environment of a test that reads a bucket.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "support/http_server.h"
#include "support/spec_text.h"

namespace shardinit {

// Sets the variables that locate a store and credentials, for one test.
class InEnvironment : public testing::Test {
 protected:
  InEnvironment() {
    for (const char* name : {"AWS_ACCESS_KEY_ID",
                             "AWS_SECRET_ACCESS_KEY",
                             "AWS_SESSION_TOKEN",
                             "AWS_SECURITY_TOKEN",
                             "AWS_DEFAULT_PROFILE",
                             "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
                             "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
                             "AWS_EC2_METADATA_V1_DISABLED",
                             "AWS_REGION",
                             "AWS_DEFAULT_REGION",
                             "AWS_PROFILE",
                             "AWS_ENDPOINT_URL",
                             "AWS_ENDPOINT_URL_S3",
                             "AWS_ENDPOINT_URL_STS",
                             "AWS_MAX_ATTEMPTS",
                             "AWS_CA_BUNDLE",
                             "AWS_ROLE_ARN",
                             "AWS_ROLE_SESSION_NAME",
                             "AWS_WEB_IDENTITY_TOKEN_FILE",
                             "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                             "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                             "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                             "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                             "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                             "AWS_SHARED_CREDENTIALS_FILE",
                             "AWS_CONFIG_FILE",
                             "http_proxy",
                             "https_proxy",
                             "all_proxy",
                             "no_proxy",
                             "HTTP_PROXY",
                             "HTTPS_PROXY",
                             "ALL_PROXY",
                             "NO_PROXY"}) {
      Set(name, "");
    }
    Set("AWS_EC2_METADATA_DISABLED", "true");
    Set("HOME", "/nonexistent");
  }
  ~InEnvironment() override {
    for (const auto& [name, value] : before_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }

  // An empty value removes the variable.
  void Set(const std::string& name, const std::string& value) {
    const char* const present = std::getenv(name.c_str());
    before_.try_emplace(name,
                        present == nullptr ? std::nullopt : std::optional<std::string>(present));
    if (value.empty()) {
      unsetenv(name.c_str());
    } else {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }

  void PointTo(const HttpServer& server) {
    Set("AWS_ENDPOINT_URL", server.url());
    Set("AWS_ACCESS_KEY_ID", "AKID");
    Set("AWS_SECRET_ACCESS_KEY", "secret");
    Set("AWS_REGION", "eu-test-1");
    Set("AWS_MAX_ATTEMPTS", "2");
  }

  // Writes a file in the working directory and returns its name.
  static std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(name) << text;
    return name;
  }

 private:
  const WorkingFolder folder_{{}};
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace shardinit
