// How numbers and tables are shown to people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

std::string Grouped(int64_t number);  // 405,853,388,800
// `1 rank`, `512 ranks`; `plural` where an s will not do.
std::string Count(int64_t number, std::string_view noun, std::string_view plural = {});
std::string InBytes(int64_t bytes);  // 811.7 GB, powers of 1000 as disks are sold
std::string InShape(const std::vector<int64_t>& shape);  // [128256, 16384]

// Rows of a table or list that people are shown. A few words of a spec can make millions of them.
inline constexpr size_t kMostRows = 10'000;
// The line that says how many more there are; empty if there are none.
std::string AndMore(size_t count, std::string_view what);

// Columns padded to their widest cell of up to 200 characters, two spaces apart; `right[c]` aligns
// column c to the right. The first row is a heading, and there are `total` rows, which need not all
// be given: the first are shown.
std::string Table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right,
                  size_t total = 0);

// Texts that are equal but for numbers. A number stands alone between separators: of
// a path these are its dots.
//
// With `*` for numbers: of a path, a pattern that matches all tensors of a repeat.
std::string WithoutNumbers(std::string_view text, std::string_view separators = ".");
// One text for all that are equal without numbers: `layers.{0…125}.weight`.
std::string AsOne(const std::vector<std::string_view>& texts, std::string_view separators = ".");

}  // namespace shardinit
