#include "checkpoint/signature.h"

#include <fmt/format.h>

#include <vector>

#include "base/child.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace shardinit {
namespace {

constexpr size_t kLimit = 1 << 20;
// Signatures for other purposes are not valid.
constexpr char kNamespace[] = "shardinit";
constexpr char kHint[] = "it comes with OpenSSH 8.2 or later, and compares signatures with keys";

// Returns a message of ssh-keygen as the end of a sentence.
std::string MessageOf(std::string_view output) {
  output = output.substr(0, output.find('\n'));
  while (!output.empty() && (output.back() == '\r' || output.back() == '.'))
    output.remove_suffix(1);
  return output.empty() ? "ssh-keygen printed nothing else"
                        : fmt::format("ssh-keygen printed: {}", Escape(output));
}

// Runs ssh-keygen, which exits with 0 for yes and 255 for no, and prints its decision. Throws Error
// (kWorld) if it ends in another way, without a decision.
ChildResult RunSshKeygen(std::vector<std::string> words, std::string_view input) {
  words.insert(words.begin(), {"ssh-keygen", "-Y"});
  ChildResult result = RunChild(words, input, kHint);
  if (!result.output.empty() && (result.status == 0 || result.status == 255)) return result;
  const std::string how = result.status > 128 && result.status < 255
                              ? fmt::format("was killed by signal {}", result.status - 128)
                              : fmt::format("exited with status {}", result.status);
  throw Error(
      ExitCode::kWorld,
      fmt::format("cannot check the signature: ssh-keygen {}: {}", how, MessageOf(result.output)),
      fmt::format("run `ssh-keygen -Y {} …` yourself to see why", words[2]));
}

// Returns the principals that ssh-keygen found for a key, from lines with commas. Skips negated
// ones, which exclude signers.
std::vector<std::string> PrincipalsIn(std::string_view output) {
  std::vector<std::string> names;
  while (!output.empty()) {
    const size_t end = output.find_first_of(",\r\n");
    const std::string_view name = output.substr(0, end);
    if (!name.empty() && !name.starts_with('!')) names.emplace_back(name);
    output.remove_prefix(end == output.npos ? output.size() : end + 1);
  }
  return names;
}

}  // namespace

std::string SignatureOf(std::string_view file) { return fmt::format("{}.sig", file); }

Signed CheckSignature(const SignatureRequest& request, std::string_view text) {
  ReadFile(request.signers, kLimit);  // Its errors are clearer than ssh-keygen's.
  if (!Exists(request.signature)) {
    return {"", fmt::format("is not signed: there is no `{}`", Escape(request.signature))};
  }
  ReadFile(request.signature, kLimit);
  const ChildResult found =
      RunSshKeygen({"find-principals", "-s", request.signature, "-f", request.signers}, "");
  const std::vector<std::string> principals = PrincipalsIn(found.output);
  if (found.status == 0 && principals.empty()) {
    return {"", fmt::format("is signed with a key that `{}` lists only for excluded names",
                            request.signers)};
  }
  if (found.status != 0) {
    return {"", fmt::format("is not signed by anybody in `{}`: {}", request.signers,
                            MessageOf(found.output))};
  }
  // Only this call decides. The other call only suggests names: a pattern may exclude one of them,
  // or one may be a warning.
  std::string why;
  for (const std::string& signer : principals) {
    const ChildResult checked = RunSshKeygen(
        {"verify", "-f", request.signers, "-I", signer, "-n", kNamespace, "-s", request.signature},
        text);
    if (checked.status == 0) return {signer, ""};
    if (!why.empty()) continue;  // The first name is the most likely one.
    why = fmt::format("is not what {} signed with the namespace `{}`: {}", Escape(signer),
                      kNamespace, MessageOf(checked.output));
  }
  return {"", why};
}

}  // namespace shardinit
