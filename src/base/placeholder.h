// Recognizes files that a failed or partial download left in place of the real ones.
#pragma once

#include <string_view>

namespace shardinit {

struct Placeholder {
  std::string_view name;  // as in "is a page of HTML"
  std::string_view hint;  // what to do; `{}` is the file's path
};

// Recognizes the start of a Git LFS or Xet pointer, or of an HTML or XML page. Returns null for
// anything else.
const Placeholder* FindPlaceholder(std::string_view head);

}  // namespace shardinit
