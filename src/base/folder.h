// Reads folders that anyone may have written: no link in them is followed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/file.h"

namespace shardinit {

enum class NameKind { kFile, kFolder, kLink, kOther };

// Calls `visit` with each name below `folder`, such as `a/b`, in no certain order, and goes on into
// those folders for which it returns true. Throws Error (kWorld) if a folder cannot be read.
void Walk(const std::string& folder,
          const std::function<bool(const std::string& name, NameKind kind)>& visit);

// Opens a regular file for reading and returns an empty text; else returns what is wrong, such as
// `is missing`. Throws Error (kWorld) if the file is there and cannot be opened.
std::string_view OpenIfFile(const std::string& path, Fd* fd, int64_t* size);

// Reads all of such a file of up to `limit` bytes, and returns the same.
std::string_view ReadIfFile(const std::string& path, size_t limit, std::string* text);

}  // namespace shardinit
