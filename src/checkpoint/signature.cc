#include "checkpoint/signature.h"

#include <fmt/format.h>

#include "base/child.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace shardinit {
namespace {

constexpr size_t kLimit = 1 << 20;
// A signature for one purpose is none for another.
constexpr char kNamespace[] = "shardinit";
constexpr char kHint[] = "it comes with OpenSSH 8.2 or later, and compares signatures with keys";

// A message of ssh-keygen as the end of a sentence.
std::string Said(std::string_view output) {
  output = output.substr(0, output.find('\n'));
  while (!output.empty() && (output.back() == '\r' || output.back() == '.'))
    output.remove_suffix(1);
  return output.empty() ? "ssh-keygen says nothing more"
                        : fmt::format("ssh-keygen says: {}", Escape(output));
}

}  // namespace

std::string SignatureOf(std::string_view file) { return fmt::format("{}.sig", file); }

Signed CheckSignature(const SignatureRequest& request, std::string_view text) {
  ReadFile(request.signers, kLimit);  // Its errors say more than those of ssh-keygen.
  if (!Exists(request.signature)) {
    return {"", fmt::format("is not signed: there is no `{}`", Escape(request.signature))};
  }
  ReadFile(request.signature, kLimit);
  const ChildResult found = RunChild(
      {"ssh-keygen", "-Y", "find-principals", "-s", request.signature, "-f", request.signers}, "",
      kHint);
  // The principals of a key stand on one line, separated by commas; the first one is as good as
  // any.
  const std::string signer = found.output.substr(0, found.output.find_first_of(",\n"));
  if (found.status != 0 || signer.empty()) {
    return {"", fmt::format("is signed by nobody whom `{}` names: {}", request.signers,
                            Said(found.output))};
  }
  // This alone decides. The other call only says which name to ask for.
  const ChildResult checked = RunChild({"ssh-keygen", "-Y", "verify", "-f", request.signers, "-I",
                                        signer, "-n", kNamespace, "-s", request.signature},
                                       text, kHint);
  if (checked.status == 0) return {signer, ""};
  return {"", fmt::format("is not what {} signed with the namespace `{}`: {}", Escape(signer),
                          kNamespace, Said(checked.output))};
}

}  // namespace shardinit
