// Finds the candidate nearest to a mistyped name, for "did you mean".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// Returns the number of letters by which two texts differ, or limit + 1 if it exceeds `limit`. A
// swap of adjacent letters counts as one (optimal string alignment distance).
size_t EditDistance(std::string_view a, std::string_view b, size_t limit);

// Returns whether `name` may be a misspelling of `candidate`: it differs only in case, or by at
// most max(1, length / 3) letters. Names that differ only in digits are not misspellings.
bool IsMisspelt(std::string_view name, std::string_view candidate);

// Returns the first of these that exists:
//  - the candidate that differs only in case, or that means the same (`gaussian`, `normal`)
//  - the candidate at the smallest distance, up to max(1, length / 3); the first of equals
//  - the first candidate that begins with the name, or the reverse, by 3 letters or more
//  - the candidate that is the last word of the name (`nn.init.normal_`)
//  - an empty text.
// This is a hint, not a search: it considers only the first few thousand candidates.
std::string Closest(std::string_view name, const std::vector<std::string>& candidates);

// Returns "a space is missing behind `x:`" for `x:1`; "did you mean `x`?"; or, if there are few
// candidates, "one of `a`, `b`, `c`". Returns an empty text if none of these helps.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace shardinit
