#include "bucket/credentials.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "bucket/profile.h"
#include "bucket/xml.h"

namespace shardinit {
namespace {

// Credentials are renewed this long before they expire, but at most once per kAgainSeconds. Some
// services return credentials that are about to expire, and programs take a second.
constexpr std::time_t kRenewSeconds = 300, kAgainSeconds = 10;

// Returns the value of `key`. Throws Error (kUsage) if it is missing or empty.
std::string Required(const ProfileKeys& keys, const std::string& key, const std::string& where) {
  const auto found = keys.find(key);
  if (found != keys.end() && !found->second.empty()) return found->second;
  throw Error(ExitCode::kUsage, fmt::format("{} has a key of AWS and no `{}`", where, key),
              "give both `aws_access_key_id` and `aws_secret_access_key`, or neither");
}

// Returns the credentials that a file has for the profile, if any. All keys are from one file.
std::optional<Credentials> KeysIn(const ProfileKeys& keys, const std::string& file) {
  if (!keys.contains("aws_access_key_id")) return {};
  const std::string where = fmt::format("the profile in {}", file);
  Credentials found{Required(keys, "aws_access_key_id", where),
                    Required(keys, "aws_secret_access_key", where)};
  for (const char* name : {"aws_session_token", "aws_security_token"}) {
    if (keys.contains(name)) found.token = keys.at(name);
  }
  return found;
}

// Returns 0 if no time is given.
std::time_t ExpirationOf(const std::string& text, const std::string& what) {
  if (text.empty()) return 0;
  if (const std::optional<std::time_t> time = TimeOf(text)) return *time;
  throw Error(ExitCode::kWorld,
              fmt::format("{} gave credentials that expire at {}, which is not an RFC 3339 time",
                          what, Quote(text)));
}

// Runs a profile's program in a shell and returns its output.
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

// Returns the token in a file, without a final newline.
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
  const bool is_here = IsOnThisMachine(request.host) || host == "169.254.170.2" ||
                       host == "169.254.170.23" || host == "[fd00:ec2::23]";
  if (request.scheme == "https" || is_here) return;
  throw Error(ExitCode::kUsage, fmt::format("{} is {}, which is neither https nor on this machine",
                                            origin, Quote(url)));
}

}  // namespace

Error NoCredentials(const std::string& what) {
  return Error(ExitCode::kUsage, what,
               "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; see "
               "shardinit-bucket(7)");
}

std::optional<std::time_t> TimeOf(std::string_view text) {
  // Takes a prefix that matches `form`: a digit for each `0`, any character for `T`, and else the
  // same character.
  const auto take = [&](std::string_view form) {
    for (size_t i = 0; i < form.size(); ++i) {
      const bool is_digit = i < text.size() && text[i] >= '0' && text[i] <= '9';
      if (form[i] == '0' ? !is_digit : i >= text.size() || (text[i] != form[i] && form[i] != 'T')) {
        return false;
      }
    }
    text.remove_prefix(form.size());
    return true;
  };
  const std::string_view whole = text;
  const auto number = [&](size_t begin, size_t size) {
    return ParseNumber<int>(whole.substr(begin, size)).value_or(0);
  };
  if (!take("0000-00-00T00:00:00") || std::string_view("Tt ").find(whole[10]) == whole.npos)
    return {};
  std::tm parts = {};
  parts.tm_year = number(0, 4) - 1900;
  parts.tm_mon = number(5, 2) - 1;
  parts.tm_mday = number(8, 2);
  parts.tm_hour = number(11, 2);
  parts.tm_min = number(14, 2);
  parts.tm_sec = number(17, 2);
  const int month = parts.tm_mon, day = parts.tm_mday;
  // A minute may have a leap second.
  if (parts.tm_hour > 23 || parts.tm_min > 59 || parts.tm_sec > 60) return {};
  parts.tm_sec = std::min(parts.tm_sec, 59);
  std::time_t time = timegm(&parts);
  if (parts.tm_mon != month || parts.tm_mday != day) return {};  // no such day
  if (text.starts_with('.')) {
    const size_t end = std::min(text.find_first_not_of("0123456789", 1), text.size());
    if (end == 1) return {};
    text.remove_prefix(end);
  }
  if (text == "Z" || text == "z") {
    text = {};
  } else {
    const int sign = text.starts_with('-') ? -1 : 1;
    if (!take("+00") && !take("-00")) return {};
    const int hours = number(whole.size() - text.size() - 2, 2);
    // Some programs omit the colon or the minutes.
    const bool has_minutes = take(":00") || take("00");
    const int minutes = has_minutes ? number(whole.size() - text.size() - 2, 2) : 0;
    if (hours > 23 || minutes > 59) return {};
    time -= sign * (hours * 3600 + minutes * 60);
  }
  if (!text.empty()) return {};
  return time == 0 ? 1 : time;  // 0 means credentials that never expire.
}

Request RequestFor(const std::string& method, const std::string& url, const std::string& origin) {
  const size_t host = url.find("://");
  const std::string scheme = url.substr(0, std::min(host, url.size()));
  if (host == url.npos || (scheme != "http" && scheme != "https")) {
    throw Error(ExitCode::kUsage,
                fmt::format("{} is {}, which is not an HTTP URL", origin, Quote(url)));
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
  const std::time_t now = std::time(nullptr);
  const bool is_old = current_ && current_->expires != 0 &&
                      current_->expires - kRenewSeconds < now &&
                      (now >= found_at_ + kAgainSeconds || now < found_at_);
  if (!current_ || is_old) {
    current_ = Find();
    found_at_ = now;
    AddSecret(current_->secret);
    AddSecret(current_->token);
  }
  return *current_;
}

void CredentialSource::Expire(const Credentials& credentials) {
  const std::lock_guard lock(mutex_);
  if (current_ && current_->token == credentials.token && current_->key_id == credentials.key_id) {
    current_.reset();
  }
}

void CredentialSource::AddSecret(const std::string& secret) {
  const std::lock_guard lock(secrets_mutex_);
  // A shorter text would match words of the message, and is not a secret.
  if (secret.size() >= 4 && std::find(secrets_.begin(), secrets_.end(), secret) == secrets_.end()) {
    secrets_.push_back(secret);
  }
}

std::string CredentialSource::Printable(std::string_view text, size_t longest) {
  constexpr size_t kLongest = 4096;
  constexpr size_t kRun = 8;  // A text may repeat only the unencoded parts of a secret.
  text = text.substr(0, kLongest);
  std::string shown;
  const std::lock_guard lock(secrets_mutex_);
  for (size_t at = 0; at < text.size();) {
    size_t run = 0;
    for (const std::string& secret : secrets_) {
      size_t size = std::min(kRun, secret.size());
      if (at + size > text.size()) continue;
      for (; at + size <= text.size() && secret.find(text.substr(at, size)) != secret.npos;
           ++size) {
        run = std::max(run, size);
      }
    }
    if (run == 0) {
      shown += text[at++];
    } else {
      if (!shown.ends_with("***")) shown += "***";
      at += run;
    }
  }
  return Escape(shown.substr(0, longest));
}

Response CredentialSource::Try(const Request& request, bool is_direct) {
  constexpr int kAttempts = 4;
  for (const char* name : {"authorization", "x-aws-ec2-metadata-token"}) {
    if (const auto header = request.headers.find(name); header != request.headers.end()) {
      AddSecret(header->second);
    }
  }
  Response response;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(200 << attempt));
    response = http_.Send(
        request,
        {.connect_seconds = 2, .stall_seconds = 10, .body = 1 << 20, .is_direct = is_direct});
    if (response.status != 0 && response.status < 500 && response.status != 429) break;
  }
  return response;
}

std::string CredentialSource::BodyOf(const Response& response, const std::string& what) {
  if (response.status == 200) return response.body;
  throw Error(ExitCode::kWorld,
              fmt::format("cannot get credentials from {}: {}", what,
                          response.status == 0 ? response.failure
                                               : fmt::format("it answered {}: {}", response.status,
                                                             Printable(response.body))));
}

Credentials CredentialSource::Read(const std::string& text, const std::string& what,
                                   const char* token_name) {
  try {
    nlohmann::json in = ParseJson(text, what);
    // Treat null as missing.
    const auto get = [&](const char* name) {
      const auto member = in.find(name);
      return member == in.end() || member->is_null() ? std::string() : member->get<std::string>();
    };
    Credentials found{in.at("AccessKeyId").get<std::string>(),
                      in.at("SecretAccessKey").get<std::string>(), get(token_name)};
    found.expires = ExpirationOf(get("Expiration"), what);
    if (!found.key_id.empty() && !found.secret.empty()) return found;
    throw Error(ExitCode::kWorld, fmt::format("{} gave no credentials: a key is empty", what));
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kWorld, fmt::format("{} gave no credentials: {}", what, ComplaintOf(e)));
  }
}

Credentials CredentialSource::Find() {
  Credentials found{Environment("AWS_ACCESS_KEY_ID"), Environment("AWS_SECRET_ACCESS_KEY"),
                    FirstOf({Environment("AWS_SECURITY_TOKEN"), Environment("AWS_SESSION_TOKEN")})};
  if (!found.key_id.empty() && !found.secret.empty()) return found;
  if (!found.key_id.empty()) {
    throw Error(ExitCode::kUsage, "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not",
                "set both, or neither");
  }
  const Profile profile = ReadProfile();
  found = {};
  if (FromProfile(profile, &found) || FromContainer(&found) || FromMachine(profile, &found)) {
    return found;
  }
  return {};
}

bool CredentialSource::FromWebIdentity(const Profile& profile, Credentials* found) {
  const auto get = [&](const char* variable, const char* key) {
    return FirstOf({Environment(variable), profile.Get(key)});
  };
  const std::string file = get("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file");
  if (file.empty()) return false;
  const std::string role = get("AWS_ROLE_ARN", "role_arn");
  if (role.empty()) {
    throw Error(
        ExitCode::kUsage,
        fmt::format("{} is the token of a web identity, but its role is not set", Quote(file)),
        "set AWS_ROLE_ARN, or `role_arn` in the profile");
  }
  const std::string session = get("AWS_ROLE_SESSION_NAME", "role_session_name");
  const std::string token = ReadToken(file);
  AddSecret(token);
  const std::string region = FirstOf(
      {Environment("AWS_REGION"), Environment("AWS_DEFAULT_REGION"), profile.Get("region")});
  const std::string endpoint =
      FirstOf({profile.EndpointOf("sts"),
               region.empty() ? "https://sts.amazonaws.com"
                              : fmt::format("https://sts.{}.amazonaws.com", region)});
  Request request = RequestFor("POST", endpoint, "the endpoint of STS");
  RequireSafe(request, "the endpoint of STS", endpoint);
  request.headers["content-type"] = "application/x-www-form-urlencoded";
  const std::string body = fmt::format(
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}"
      "&RoleSessionName={}&WebIdentityToken={}",
      UriEncoded(role), UriEncoded(session.empty() ? "shardinit" : session), UriEncoded(token));
  request.body = body;
  const std::string what = fmt::format("STS for the role {}", Quote(role));
  const std::string answer = BodyOf(Try(request, false), what);
  *found = {XmlText(answer, "AccessKeyId"), XmlText(answer, "SecretAccessKey"),
            XmlText(answer, "SessionToken"), ExpirationOf(XmlText(answer, "Expiration"), what)};
  if (!found->key_id.empty() && !found->secret.empty()) return true;
  throw Error(ExitCode::kWorld, fmt::format("{} gave no credentials", what));
}

// The order is botocore's.
bool CredentialSource::FromProfile(const Profile& profile, Credentials* found) {
  const auto refuse = [&](const char* key) {
    return Error(ExitCode::kUsage,
                 fmt::format("the profile has `{}`, which only AWS's own tool supports", key),
                 "give another profile `credential_process = aws configure export-credentials "
                 "--profile NAME --format process`, and name that one in AWS_PROFILE");
  };
  const auto take = [&](const std::optional<Credentials>& keys) {
    if (keys) *found = *keys;
    return keys.has_value();
  };
  if (profile.all.contains("role_arn") && !profile.all.contains("web_identity_token_file")) {
    throw refuse(profile.all.contains("credential_source") ? "credential_source"
                 : profile.all.contains("source_profile")  ? "source_profile"
                                                           : "role_arn");
  }
  if (FromWebIdentity(profile, found)) return true;
  for (const char* key : {"sso_role_name", "sso_account_id", "sso_session", "sso_start_url"}) {
    if (profile.all.contains(key)) throw refuse(key);
  }
  if (take(KeysIn(profile.of_credentials, "~/.aws/credentials"))) return true;
  if (profile.all.contains("login_session")) throw refuse("login_session");
  if (const std::string command = profile.Get("credential_process"); !command.empty()) {
    const std::string output = OutputOf(command);
    *found = Read(output, Quote(command), "SessionToken");
    const nlohmann::json in = ParseJson(output, Quote(command));
    if (in.value("Version", nlohmann::json()) == 1) return true;
    throw Error(ExitCode::kUsage,
                fmt::format("`Version` in the output of {} must be 1, but is {}", Quote(command),
                            in.contains("Version") ? in["Version"].dump() : "missing"),
                "update the command");
  }
  return take(KeysIn(profile.of_config, "~/.aws/config"));
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
  const std::string what = "the container's service";
  *found = Read(BodyOf(Try(request, true), what), what, "Token");
  return true;
}

bool CredentialSource::FromMachine(const Profile& profile, Credentials* found) {
  if (IsTrue(Environment("AWS_EC2_METADATA_DISABLED"))) return false;
  const auto get = [&](const char* variable, const char* key) {
    return FirstOf({Environment(variable), profile.Get(key)});
  };
  constexpr char kEndpoint[] = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
  const std::string mode =
      get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ec2_metadata_service_endpoint_mode");
  std::string endpoint =
      FirstOf({get(kEndpoint, "ec2_metadata_service_endpoint"),
               mode == "ipv6" ? "http://[fd00:ec2::254]" : "http://169.254.169.254"});
  while (endpoint.ends_with('/')) endpoint.pop_back();
  Request request = RequestFor("PUT", endpoint + "/latest/api/token", kEndpoint);
  request.headers["x-aws-ec2-metadata-token-ttl-seconds"] = "21600";
  request.headers["content-type"] = "text/plain";
  const HttpLimits limits = {
      .connect_seconds = 1, .stall_seconds = 5, .body = 1 << 16, .is_direct = true};
  // Outside EC2 nobody responds. Some services have credentials but no tokens.
  const Response token = http_.Send(request, limits);
  const bool is_old = (token.status == 403 || token.status == 404 || token.status == 405) &&
                      !IsTrue(get("AWS_EC2_METADATA_V1_DISABLED", "ec2_metadata_v1_disabled"));
  if (token.status != 200 && !is_old) return false;
  const auto ask = [&](const std::string& name) {
    Request next = RequestFor(
        "GET", endpoint + "/latest/meta-data/iam/security-credentials/" + name, kEndpoint);
    if (!is_old) next.headers["x-aws-ec2-metadata-token"] = token.body;
    return Try(next, true);
  };
  const std::string what = "the machine's metadata service";
  const Response roles = ask("");
  // This page does not exist on a machine without a role.
  if (roles.status / 100 == 4) return false;
  const std::string names = BodyOf(roles, what), role = names.substr(0, names.find('\n'));
  if (role.empty()) return false;
  *found = Read(BodyOf(ask(role), what), what, "Token");
  return true;
}

}  // namespace shardinit
