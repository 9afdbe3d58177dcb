// Recognizes what a file or folder is that a user has named where another kind is due, and names
// the command that takes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace shardinit {

// Names in the folder of a checkpoint.
inline constexpr char kPlanName[] = "plan.json";
inline constexpr char kManifestName[] = "manifest.json";
// The record of an export, beside its files, says where they come from and has the digest of every
// byte. No checkpoint's folder has it.
inline constexpr char kExportName[] = "shardinit-export.json";
// In a bucket those who write an export tell each other in this folder what they make, and what
// they have made.
inline constexpr char kExportNotes[] = ".shardinit-export";
inline constexpr char kExportClaim[] = ".shardinit-export/claim.json";

struct FileKind {
  std::string_view name;  // as in "is a spec"
  std::string_view hint;  // what takes it; `{}` is its path
};

// These are compared by address; the others need no name.
extern const FileKind kSpecKind, kConfigKind, kPlanKind, kHdf5Kind, kSafetensorsKind, kTorchKind;

// Recognizes the beginning of a file with this name; null: it is nothing that is known.
const FileKind* KindOfText(std::string_view name, std::string_view text);

// Recognizes a file or a folder; null: it is nothing that is known, or cannot be read.
const FileKind* KindOfPath(const std::string& path);

// Returns the kind's hint for this path.
std::string HintOf(const FileKind& kind, std::string_view path);

// Returns Error (kUsage), "`x` is an export, not a checkpoint".
Error WrongKind(const FileKind& kind, const std::string& path, std::string_view wanted);
// Does the same if the kind of `path` is known.
std::optional<Error> WrongKind(const std::string& path, std::string_view wanted);

// Returns Error (kUsage) for the place of an export that was begun and has no record yet.
Error UnfinishedExport(const std::string& place);

}  // namespace shardinit
