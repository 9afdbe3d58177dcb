// Finds the candidate nearest to a mistyped name, for "did you mean".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// Returns by how many letters two texts differ, or limit + 1 if by more than `limit`. Adjacent
// letters that are swapped count as one (the distance of optimal string alignment).
size_t EditDistance(std::string_view a, std::string_view b, size_t limit);

// Tells whether `name` may be a misspelling of `candidate`: it differs in capitals alone, or by at
// most max(1, length / 3) letters. Another number in a name is meant.
bool IsMisspelt(std::string_view name, std::string_view candidate);

// Returns the candidate that differs in capitals alone, or that means the same (`gaussian`,
// `normal`); else the candidate with the smallest distance, if that is at most max(1, length / 3);
// the first of equals. Else returns the first one that begins with the name, or that the name
// begins with, by three letters or more; else the one that is the last word of the name
// (`nn.init.normal_`). Returns an empty text if none is near. This is a hint, not a
// search: only the first few thousand candidates are looked at.
std::string Closest(std::string_view name, const std::vector<std::string>& candidates);

// Returns "a space is missing behind `x:`" for `x:1`, "did you mean `x`?", or else, when there are
// few candidates, "one of `a`, `b`, `c`"; empty when neither helps.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace shardinit
