// How numbers and tables are shown to people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

std::string Grouped(int64_t number);     // 405,853,388,800
// `1 rank`, `512 ranks`; `plural` where an s will not do.
std::string Count(int64_t number, std::string_view noun, std::string_view plural = {});
std::string InBytes(int64_t bytes);      // 811.7 GB, powers of 1000 as disks are sold
std::string InShape(const std::vector<int64_t>& shape);  // [128256, 16384]

// Columns padded to their widest cell, two spaces apart; `right[c]` aligns
// column c to the right.
std::string Table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right);

// A path whose indices are `*`, as a pattern that matches all tensors of a repeat.
std::string WithoutIndices(std::string_view path);

// A tensor path, or what a damaged file holds in its place, without control
// characters.
std::string Printable(std::string_view text);

}  // namespace shardinit
