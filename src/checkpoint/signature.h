// Tells who stands for a checkpoint or an export. Digests say that it is whole and agrees with
// itself; whoever can change it can change these, too, but cannot sign it.
#pragma once

#include <string>
#include <string_view>

namespace shardinit {

// The name of the file that `ssh-keygen -Y sign` makes beside the signed one.
std::string SignatureOf(std::string_view file);

struct SignatureRequest {
  std::string signature;  // path of the signature, as `ssh-keygen -Y sign -n shardinit` writes it
  std::string signers;  // path of the keys that are trusted, as in ALLOWED SIGNERS of ssh-keygen(1)
};

struct Signed {
  std::string signer;   // the principal whose key it is; empty: the text is not signed
  std::string message;  // what is wrong then
};

// Compares a signature with the text of the file that says what everything else is: its manifest,
// or its record. Throws Error: kUsage if there is no file of signers, or no program ssh-keygen;
// kWorld if ssh-keygen ends without a decision.
Signed CheckSignature(const SignatureRequest& request, std::string_view text);

}  // namespace shardinit
