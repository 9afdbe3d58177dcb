// Creates files that several writers may create at once: each checks whether the existing file is
// the one that it wanted to create.
#pragma once

#include <functional>
#include <string_view>

#include "place/digests.h"
#include "place/file_outline.h"
#include "place/place.h"

namespace shardinit {

// Creates or replaces a file without boxes; `sha256` is the digest of its bytes. In a place that
// does not replace files, accepts an equal file, and throws Error (kConflict) for any other. An
// existing file is read, unless `file` has metadata and the existing file has the same. Throws
// Error (kWorld) if other writers end each of several uploads.
void PutOnce(const Place& place, const FileOutline& file, const Digest& sha256,
             const std::function<void()>& before_name);

// Returns whether another writer has created the file: one with its size and metadata exists.
// Throws Error (kConflict) if a different file exists; `whole` names the owner of the files, such
// as `plan`. In a place that replaces files, checks nothing and returns false.
bool IsMade(const Place& place, const FileOutline& file, std::string_view whole);

// Throws Error (kConflict) unless the file has these digests. Call it when another writer created
// the file, perhaps from a source with other elements.
void RequireSameBytes(const Place& place, const FileOutline& file, const FileDigests& wanted);

}  // namespace shardinit
