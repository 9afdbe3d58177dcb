#include "bucket/credentials.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "bucket/profile.h"
#include "bucket/xml.h"

namespace shardinit {
namespace {

// Credentials are renewed so long before they expire.
constexpr std::time_t kRenewSeconds = 300;

// Tries a request to a service of the machine or of AWS a few times.
// `is_direct`: what is asked is this machine's own, and no proxy's.
Response Ask(Http& http, const Request& request, const std::string& what, bool is_direct = false) {
  constexpr int kAttempts = 4;
  Response response;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(200 << attempt));
    response = http.Send(
        request,
        {.connect_seconds = 2, .stall_seconds = 10, .body = 1 << 20, .is_direct = is_direct});
    if (response.status != 0 && response.status < 500 && response.status != 429) break;
  }
  if (response.status == 200) return response;
  throw Error(
      ExitCode::kWorld,
      fmt::format("cannot get credentials from {}: {}", what,
                  response.status == 0 ? response.failure
                                       : fmt::format("it answered {}: {}", response.status,
                                                     Escape(response.body.substr(0, 500)))));
}

// Reads what services of machines and programs print.
Credentials ReadCredentials(const std::string& text, const std::string& what,
                            const char* token_name) {
  try {
    const nlohmann::json in = ParseJson(text, what);
    Credentials found{in.at("AccessKeyId").get<std::string>(),
                      in.at("SecretAccessKey").get<std::string>()};
    found.token = in.value(token_name, std::string());
    found.expires = TimeOf(in.value("Expiration", std::string()));
    return found;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kWorld, fmt::format("{} gave no credentials: {}", what, ComplaintOf(e)));
  }
}

// Runs the program of a profile as a shell does, and returns what it prints.
std::string OutputOf(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) throw SystemError("run", command);
  std::string output;
  char piece[4096];
  for (size_t bytes; (bytes = std::fread(piece, 1, sizeof(piece), pipe)) > 0;) {
    output.append(piece, bytes);
    if (output.size() > (1 << 20)) break;
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
  throw Error(ExitCode::kWorld,
              fmt::format("`{}`, the `credential_process` of the profile, failed with status {}",
                          Escape(command), WIFEXITED(status) ? WEXITSTATUS(status) : 128));
}

// Returns the text of a file with a token, which may end with a newline.
std::string ReadToken(const std::string& file) {
  std::string token = ReadFile(file, 1 << 20);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  return token;
}

// Throws Error unless the request is encrypted or stays on this machine: keys and tokens must not
// cross a network in plain text.
void RequireSafe(const Request& request, const std::string& origin, const std::string& url) {
  const size_t port = request.host.ends_with(']') ? request.host.npos : request.host.rfind(':');
  const std::string host = request.host.substr(0, port);
  const bool is_here =
      host == "localhost" ||
      (host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos) ||
      host == "[::1]" || host == "169.254.170.2" || host == "169.254.170.23" ||
      host == "[fd00:ec2::23]";
  if (request.scheme == "https" || is_here) return;
  throw Error(ExitCode::kUsage, fmt::format("{} is {}, which is neither https nor on this machine",
                                            origin, Quote(url)));
}

}  // namespace

std::time_t TimeOf(const std::string& text) {
  std::tm parts = {};
  return strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr ? 0 : timegm(&parts);
}

Request RequestFor(const std::string& method, const std::string& url, const std::string& origin) {
  const size_t host = url.find("://");
  const std::string scheme = url.substr(0, std::min(host, url.size()));
  if (host == url.npos || (scheme != "http" && scheme != "https")) {
    throw Error(ExitCode::kUsage,
                fmt::format("{} is {}, which is no URL of HTTP", origin, Quote(url)));
  }
  const size_t path = std::min(url.find_first_of("/?", host + 3), url.size());
  const size_t query = std::min(url.find('?', path), url.size());
  Request request{.method = method,
                  .scheme = scheme,
                  .host = url.substr(host + 3, path - host - 3),
                  .path = url.substr(path, query - path)};
  if (request.path.empty()) request.path = "/";
  for (size_t begin = query + 1; begin < url.size();) {
    const size_t end = std::min(url.find('&', begin), url.size());
    const std::string member = url.substr(begin, end - begin);
    const size_t equal = std::min(member.find('='), member.size());
    request.query.emplace_back(member.substr(0, equal),
                               member.substr(std::min(equal + 1, member.size())));
    begin = end + 1;
  }
  return request;
}

Credentials CredentialSource::Get() {
  const std::lock_guard lock(mutex_);
  const bool is_old =
      current_.expires != 0 && current_.expires - kRenewSeconds < std::time(nullptr);
  if (current_.key_id.empty() || is_old) current_ = Find();
  return current_;
}

void CredentialSource::Expire(const Credentials& credentials) {
  const std::lock_guard lock(mutex_);
  if (current_.token == credentials.token && current_.key_id == credentials.key_id) current_ = {};
}

Credentials CredentialSource::Find() {
  Credentials found{Environment("AWS_ACCESS_KEY_ID"), Environment("AWS_SECRET_ACCESS_KEY"),
                    Environment("AWS_SESSION_TOKEN")};
  if (!found.key_id.empty() && !found.secret.empty()) return found;
  if (FromWebIdentity(Environment("AWS_WEB_IDENTITY_TOKEN_FILE"), Environment("AWS_ROLE_ARN"),
                      Environment("AWS_ROLE_SESSION_NAME"), "", &found) ||
      FromProfile(&found) || FromContainer(&found) || FromMachine(&found)) {
    return found;
  }
  throw Error(ExitCode::kWorld, "there are no credentials for the bucket",
              "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; see "
              "shardinit-bucket(7)");
}

bool CredentialSource::FromWebIdentity(const std::string& token_file, const std::string& role,
                                       const std::string& session, const std::string& region,
                                       Credentials* found) {
  if (token_file.empty() || role.empty()) return false;
  const std::string token = ReadToken(token_file);
  std::string where = Environment("AWS_REGION");
  if (where.empty()) where = Environment("AWS_DEFAULT_REGION");
  if (where.empty()) where = region;
  std::string endpoint = Environment("AWS_ENDPOINT_URL_STS");
  if (endpoint.empty()) endpoint = Environment("AWS_ENDPOINT_URL");
  if (endpoint.empty()) {
    endpoint = where.empty() ? "https://sts.amazonaws.com"
                             : fmt::format("https://sts.{}.amazonaws.com", where);
  }
  Request request = RequestFor("POST", endpoint, "the endpoint of STS");
  RequireSafe(request, "the endpoint of STS", endpoint);
  request.headers["content-type"] = "application/x-www-form-urlencoded";
  const std::string body = fmt::format(
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}"
      "&RoleSessionName={}&WebIdentityToken={}",
      UriEncoded(role), UriEncoded(session.empty() ? "shardinit" : session), UriEncoded(token));
  request.body = body;
  const std::string what = fmt::format("STS for the role {}", Quote(role));
  const Response response = Ask(http_, request, what);
  *found = {XmlText(response.body, "AccessKeyId"), XmlText(response.body, "SecretAccessKey"),
            XmlText(response.body, "SessionToken"), TimeOf(XmlText(response.body, "Expiration"))};
  if (!found->key_id.empty() && !found->secret.empty()) return true;
  throw Error(ExitCode::kWorld, fmt::format("{} gave no credentials", what));
}

bool CredentialSource::FromProfile(Credentials* found) {
  std::map<std::string, std::string> profile = ReadProfile();
  // Keys beside a role are those that take it, not the role's.
  for (const char* key : {"sso_session", "sso_start_url", "source_profile", "credential_source"}) {
    if (profile[key].empty() || !profile["credential_process"].empty()) continue;
    throw Error(ExitCode::kUsage,
                fmt::format("the profile has `{}`, which shardinit leaves to AWS's own tool", key),
                "give another profile `credential_process = aws configure export-credentials "
                "--profile NAME --format process`, and name that one in AWS_PROFILE");
  }
  if (FromWebIdentity(profile["web_identity_token_file"], profile["role_arn"],
                      profile["role_session_name"], profile["region"], found)) {
    return true;
  }
  if (!profile["aws_access_key_id"].empty() && !profile["aws_secret_access_key"].empty()) {
    *found = {profile["aws_access_key_id"], profile["aws_secret_access_key"],
              profile["aws_session_token"]};
    return true;
  }
  if (const std::string& command = profile["credential_process"]; !command.empty()) {
    *found = ReadCredentials(OutputOf(command), Quote(command), "SessionToken");
    return true;
  }
  return false;
}

bool CredentialSource::FromContainer(Credentials* found) {
  const std::string relative = Environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  std::string url = Environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative.empty()) url = "http://169.254.170.2" + relative;
  if (url.empty()) return false;
  Request request = RequestFor("GET", url, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
  RequireSafe(request, "AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
  std::string token = Environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = Environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
      !file.empty()) {
    token = ReadToken(file);
  }
  if (!token.empty()) request.headers["authorization"] = token;
  *found = ReadCredentials(Ask(http_, request, "the container's service", true).body,
                           "the container's service", "Token");
  return true;
}

bool CredentialSource::FromMachine(Credentials* found) {
  if (Environment("AWS_EC2_METADATA_DISABLED") == "true") return false;
  std::string endpoint = Environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) endpoint = "http://169.254.169.254";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  Request request =
      RequestFor("PUT", endpoint + "/latest/api/token", "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  request.headers["x-aws-ec2-metadata-token-ttl-seconds"] = "21600";
  request.headers["content-type"] = "text/plain";
  // Elsewhere than on EC2 nobody answers.
  const Response token = http_.Send(
      request, {.connect_seconds = 1, .stall_seconds = 5, .body = 1 << 16, .is_direct = true});
  if (token.status != 200) return false;
  const auto get = [&](const std::string& name) {
    Request next =
        RequestFor("GET", endpoint + "/latest/meta-data/iam/security-credentials/" + name,
                   "AWS_EC2_METADATA_SERVICE_ENDPOINT");
    next.headers["x-aws-ec2-metadata-token"] = token.body;
    return Ask(http_, next, "the machine's metadata service", true).body;
  };
  const std::string roles = get("");
  const std::string role = roles.substr(0, roles.find('\n'));
  if (role.empty()) return false;
  *found = ReadCredentials(get(role), "the machine's metadata service", "Token");
  return true;
}

}  // namespace shardinit
