// Files that several writers may make at once: each finds out whether the file that has the name is
// the one it wanted to make.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "place/digests.h"
#include "place/file_outline.h"
#include "place/place.h"

namespace shardinit {

// Creates a file without boxes, or replaces it; `sha256` is the digest of its bytes. In a place
// where no file is replaced, an equal file may exist, and any other one is an Error (kConflict).
void PutOnce(const Place& place, const FileOutline& file, const Digest& sha256,
             const std::function<void()>& before_name);

// Returns whether another writer has made the file: one with its size and metadata exists. Throws
// Error (kConflict) if a different file exists; `whole` is what the files belong to, such as
// `plan`. Where files are replaced, nothing is looked up, and the result is false.
bool IsMade(const Place& place, const FileOutline& file, std::string_view whole);

// Throws Error (kConflict) unless the file has these digests. Call it when another writer made the
// file, perhaps when a source had other elements.
void RequireSameBytes(const Place& place, const FileOutline& file, const FileDigests& wanted);

}  // namespace shardinit
