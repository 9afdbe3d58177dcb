// Lists and reads the files of one model on a web server.
#pragma once

#include <string>
#include <string_view>

#include "bucket/tree.h"

namespace shardinit {

// Web servers list no folders. A URL with the name of a file of tensors is this file. Another URL
// is a folder with the files that Hugging Face's tools write, and those that its index names. The
// files must keep their strong ETag, or else their time, while they are read. Throws Error: kUsage
// if the server lacks a needed feature, kRefused for an index with wrong names, else kWorld.
BucketTree::Parts ListWeb(const std::string& url);

// Returns whether a URL has the name of a file of tensors, or of an index, on a web server.
bool NamesWebFile(std::string_view url);

}  // namespace shardinit
