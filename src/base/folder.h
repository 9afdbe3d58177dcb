// What is in a folder that anyone may have written: no link in it is followed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/file.h"

namespace shardinit {

enum class NameKind { kFile, kFolder, kLink, kOther };

// Calls with each name below `folder`, as in `a/b`, in no certain order, and goes on into those
// folders for which `visit` is true. Throws Error (kWorld) if a folder cannot be read.
void Walk(const std::string& folder,
          const std::function<bool(const std::string& name, NameKind kind)>& visit);

// Opens a regular file for reading; else says what is wrong, as in `is missing`. Throws Error
// (kWorld) if it is there and cannot be opened.
std::string_view OpenIfFile(const std::string& path, Fd* fd, int64_t* size);

// All of such a file of up to `limit` bytes.
std::string_view ReadIfFile(const std::string& path, size_t limit, std::string* text);

}  // namespace shardinit
