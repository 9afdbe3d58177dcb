// Creates each object once and compares later versions with it, so that the writers of a folder
// agree on its contents.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "bucket/store.h"

namespace shardinit {

// The number of tries for operations that another writer may spoil.
inline constexpr int kTriesAmongWriters = 5;

// Creates the object that claims a folder for a writer, unless one of that name exists, which the
// caller must compare. Throws Error (kUsage) if the store would let another writer replace it.
void PutClaim(Store& store, const std::string& name, std::string_view text,
              const Metadata& metadata = {});

// Throws Error (kUsage) if the store would let a multipart upload of another writer replace an
// object. Tests this on the claim, which exists with this text and metadata.
void RequireConditionalUploads(Store& store, const std::string& name, std::string_view text,
                               const Metadata& metadata = {});

// Returns the error that other writers ended kTriesAmongWriters uploads to this path.
Error EndedByOthers(const std::string& path);

// Creates an object or compares the existing one. Throws Error (kConflict) if they differ.
void PutText(Store& store, const std::string& name, std::string_view text);

// Calls `visit` with these bytes of an object, in pieces of 8 MiB and in order, with at most
// `at_once` pieces in memory. Throws Error (kWorld) if the object no longer matches `info`.
void ReadObject(Store& store, const std::string& name, const ObjectInfo& info, int64_t offset,
                int64_t bytes, int at_once,
                const std::function<void(std::string_view piece)>& visit);

}  // namespace shardinit
