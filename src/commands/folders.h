// Commands ask here for what is remarkable about a folder of tensors, and what of it they refuse.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "commands/options.h"

namespace shardinit {

// Returns whether a path matches any of the patterns.
bool MatchesAny(const std::vector<std::string>& patterns, const std::string& path);

// Tells what a user may not expect of a folder, and what in it is not the model. With
// `reads_values` that includes what has to be read: whether a head that a config ties to the
// embedding differs.
void SayFolder(const TensorFolder& folder, bool reads_values = true);

// Takes the digests that the record of an export has: bytes that are copied are compared with them.
// Throws Error (kDifferent) if a file with elements is missing, or of another size.
void TakeRecord(TensorFolder* folder);
// Opens a source of a spec, with its record.
std::shared_ptr<const SourceFolder> OpenRecorded(const SourceRequest& request);

// Says what decides the values of a copy beside its plan, so that ranks that are made from other
// bytes, or as others, never become one folder. `layout` is the one that the folder has.
std::string ClaimOf(const TensorFolder& from, const std::string& layout = {});

// Throws Error (kUsage) if options were given that change a spec, for a folder of tensors.
void RequireNoOverrides(const SpecOptions& spec);

// Throws Error (kUsage) if a tensor's name is also that of a module of another, as no spec has it:
// files of HDF5 would have a group in the place of a tensor.
void RequireModules(const Plan& plan);

// Throws Error (kRefused) if a tensor of the folder is not read and matches none of the patterns:
// nothing is to be lost in silence.
void RequireAllRead(const TensorFolder& folder, const std::vector<std::string>& dropped = {});

}  // namespace shardinit
