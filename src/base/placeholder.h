// Recognizes what a failed or partial download leaves in the place of a file.
#pragma once

#include <string_view>

namespace shardinit {

struct Placeholder {
  std::string_view name;  // as in "is a page of HTML"
  std::string_view hint;  // what to do; `{}` is its path
};

// Recognizes the first bytes of a pointer of Git LFS or a page of HTML; null: it is neither.
const Placeholder* FindPlaceholder(std::string_view head);

}  // namespace shardinit
