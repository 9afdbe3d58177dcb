// Recognizes a file or folder that was passed where another kind is needed, and names the command
// that takes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace shardinit {

// Names in a checkpoint's folder.
inline constexpr char kPlanName[] = "plan.json";
inline constexpr char kManifestName[] = "manifest.json";
// The record of an export, next to its files: where they come from, and the digest of every byte. A
// checkpoint's folder never contains it.
inline constexpr char kExportName[] = "shardinit-export.json";
// Processes that write an export to a bucket announce planned and finished work in this folder.
inline constexpr char kExportNotes[] = ".shardinit-export";
inline constexpr char kExportClaim[] = ".shardinit-export/claim.json";

struct FileKind {
  std::string_view name;  // as in "is a spec"
  std::string_view hint;  // the command that takes it; `{}` becomes its path
};

// Callers compare these by address. No caller needs the other kinds by name.
extern const FileKind kSpecKind, kConfigKind, kPlanKind, kHdf5Kind, kSafetensorsKind, kTorchKind;

// Recognizes a file by its name and its first bytes. Returns null if the kind is unknown.
const FileKind* KindOfText(std::string_view name, std::string_view text);

// Recognizes a file or a folder. Returns null if it is unknown or cannot be read.
const FileKind* KindOfPath(const std::string& path);

// Returns the kind's hint for this path.
std::string HintOf(const FileKind& kind, std::string_view path);

// Returns Error (kUsage), "`x` is an export, not a checkpoint".
Error WrongKind(const FileKind& kind, const std::string& path, std::string_view wanted);
// Returns the same error if the kind of `path` is known.
std::optional<Error> WrongKind(const std::string& path, std::string_view wanted);

// Returns Error (kUsage) for an export that was begun but has no record yet.
Error UnfinishedExport(const std::string& place);

}  // namespace shardinit
