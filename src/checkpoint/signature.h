// Checks who signed a checkpoint or an export. Digests only prove that it is complete and
// consistent: an attacker who changes the data can change the digests too, but cannot sign them.
#pragma once

#include <string>
#include <string_view>

namespace shardinit {

// Returns the name of the file that `ssh-keygen -Y sign` writes next to the signed file.
std::string SignatureOf(std::string_view file);

struct SignatureRequest {
  std::string signature;  // path of the signature, as `ssh-keygen -Y sign -n shardinit` writes it
  std::string signers;    // path of the trusted keys; see ALLOWED SIGNERS in ssh-keygen(1)
};

struct Signed {
  std::string signer;   // the principal who owns the key; empty: the text is not signed
  std::string message;  // why the text is not signed
};

// Checks the signature of a manifest or a record, the file that describes all other files. `text`
// is its text. Throws Error: kUsage if the file of signers or the program ssh-keygen is missing;
// kWorld if ssh-keygen ends without a decision.
Signed CheckSignature(const SignatureRequest& request, std::string_view text);

}  // namespace shardinit
