// Objects that are made once and then compared: by them writers of one folder agree on what it
// holds.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "bucket/store.h"

namespace shardinit {

// How often something is tried that another writer may spoil each time.
inline constexpr int kTriesAmongWriters = 5;

// Makes the object by which a writer takes a folder, unless one of that name is there: the caller
// compares it. Throws Error (kUsage) if the store would let another writer replace it.
void PutClaim(Store& store, const std::string& name, std::string_view text,
              const Metadata& metadata = {});

// Throws Error (kUsage) if the store would let another writer replace what an upload of parts made.
// Tries it on the claim, which is there with this text and metadata.
void RequireConditionalUploads(Store& store, const std::string& name, std::string_view text,
                               const Metadata& metadata = {});

// Makes an object, or compares the one that is there. Throws Error (kConflict) if that is another.
void PutText(Store& store, const std::string& name, std::string_view text);

// Calls `visit` with these bytes of an object, piece by piece and in order. At most `at_once`
// pieces are in memory, of 8 MiB each. Throws Error (kWorld) if it is no longer that of `info`.
void ReadObject(Store& store, const std::string& name, const ObjectInfo& info, int64_t offset,
                int64_t bytes, int at_once,
                const std::function<void(std::string_view piece)>& visit);

}  // namespace shardinit
