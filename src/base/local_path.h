// Every path is one of this machine's file systems; `scheme://…` names another kind of store.
#pragma once

#include <string>

namespace shardinit {

// Throws Error (kUsage), with the way that works, if `path` begins with a scheme and `://`: else a
// file or folder of that name would be made or looked for here.
void RequireLocal(const std::string& path);

}  // namespace shardinit
