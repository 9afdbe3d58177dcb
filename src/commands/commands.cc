#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/interrupt.h"
#include "commands/command.h"

namespace shardinit {

extern const Command kGen, kPlan, kValidate, kExplain, kGraph, kDiff, kDigest, kStats, kExport,
    kProgram, kReshard, kVerify, kInspect, kFinalize, kStatus, kSchema, kImport, kCompletion;

std::span<const Command* const> Commands() {
  static constexpr const Command* kCommands[] = {
      &kGen,     &kPlan,     &kValidate, &kExplain, &kGraph,   &kDiff,
      &kDigest,  &kStats,    &kExport,   &kProgram, &kReshard, &kVerify,
      &kInspect, &kFinalize, &kStatus,   &kSchema,  &kImport,  &kCompletion,
  };
  return kCommands;
}

void Print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  // A reader that has gone is no failure: `shardinit … | head`.
  if (errno == EPIPE) throw Interrupted{SIGPIPE};
  throw SystemError("write", "standard output");
}

}  // namespace shardinit
