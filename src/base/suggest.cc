#include "base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/table.h"
#include "base/text.h"

namespace shardinit {
namespace {

constexpr size_t kMostCandidates = 4096;
constexpr size_t kMostListed = 32;
constexpr size_t kLongestName = 255;

// Words from other tools, and their equivalents here.
constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
    {"act", "nonlinearity"},
    {"activation", "nonlinearity"},
    {"ceil", "ceil_div"},
    {"dimensions", "shape"},
    {"dims", "shape"},
    {"distcp", "dcp"},
    {"fill", "constant"},
    {"flax", "zarr"},
    {"full", "constant"},
    {"gauss", "normal"},
    {"gaussian", "normal"},
    {"glorot", "xavier_normal"},
    {"h5", "keras"},
    {"hdf5", "keras"},
    {"he", "kaiming_normal"},
    {"hf", "safetensors"},
    {"huggingface", "safetensors"},
    {"int", "floor"},
    {"jax", "zarr"},
    {"kaiming", "kaiming_normal"},
    {"loc", "mean"},
    {"max", "high"},
    {"maxval", "high"},
    {"min", "low"},
    {"minval", "low"},
    {"mu", "mean"},
    {"orbax", "zarr"},
    {"power", "pow"},
    {"pt", "dcp"},
    {"pth", "dcp"},
    {"pytorch", "dcp"},
    {"randn", "normal"},
    {"rand", "uniform"},
    {"scale", "std"},
    {"sigma", "std"},
    {"size", "shape"},
    {"stddev", "std"},
    {"stdev", "std"},
    {"torch", "dcp"},
    {"torch", "out_in"},
    {"pytorch", "out_in"},
    {"jax", "in_out"},
    {"flax", "in_out"},
    {"keras", "in_out"},
    {"transformers", "safetensors"},
    {"xavier", "xavier_normal"},
    {"gspmd", "mhlo"},
    {"shardy", "sdy"},
};

// Returns the candidate that differs only in case, or that means the same; empty if none matches.
std::string SameWord(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string lower = Lower(name);
  for (const std::string& candidate : candidates) {
    if (Lower(candidate) == lower) return candidate;
  }
  for (const auto& [other, own] : kSynonyms) {
    if (other == lower && Contains(candidates, own)) return std::string(own);
  }
  return {};
}

// Returns the last word of a name such as `torch.nn.init.normal_`, without its `_`.
std::string_view LastWord(std::string_view name) {
  name.remove_prefix(name.rfind('.') + 1);
  while (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

// Returns the maximum number of wrong letters in a misspelling.
size_t LimitFor(std::string_view name) { return std::max<size_t>(1, name.size() / 3); }

}  // namespace

size_t EditDistance(std::string_view a, std::string_view b, size_t limit) {
  const size_t difference = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (difference > limit) return limit + 1;
  // Rows i - 2, i - 1 and i of the distance matrix.
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    size_t smallest = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
      smallest = std::min(smallest, row[j]);
    }
    if (smallest > limit) return limit + 1;
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

bool IsMisspelt(std::string_view name, std::string_view candidate) {
  if (name.size() > kLongestName) return false;
  if (Lower(name) == Lower(candidate)) return name != candidate;
  const auto without_digits = [](std::string_view text) {
    std::string letters(text);
    std::erase_if(letters, [](char c) { return c >= '0' && c <= '9'; });
    return letters;
  };
  if (without_digits(name) == without_digits(candidate)) return false;
  const size_t limit = LimitFor(name);
  const size_t distance = EditDistance(name, candidate, limit);
  return distance <= limit && distance < std::max(name.size(), candidate.size());
}

std::string Closest(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.empty() || name.size() > kLongestName) return {};
  // This is a hint, not a search.
  if (candidates.size() <= kMostCandidates) {
    if (std::string same = SameWord(name, candidates); !same.empty()) return same;
  }
  size_t limit = LimitFor(name);
  std::string closest;
  const size_t count = std::min(candidates.size(), kMostCandidates);
  for (size_t i = 0; i < count && limit > 0; ++i) {
    const std::string& candidate = candidates[i];
    const size_t distance = EditDistance(name, candidate, limit);
    // A completely different name of one or two letters is not a suggestion.
    if (distance > limit || distance >= std::max(name.size(), candidate.size())) continue;
    if (!closest.empty() && distance == limit) continue;
    closest = candidate;
    limit = distance;
  }
  if (!closest.empty()) return closest;
  // One name may begin with the other: `generate` and `gen`, `vocab_size` and `vocab`.
  constexpr size_t kShortestPart = 3;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view candidate = candidates[i];
    const size_t shared = std::min(name.size(), candidate.size());
    if (shared >= kShortestPart && name.substr(0, shared) == candidate.substr(0, shared)) {
      return candidates[i];
    }
  }
  const std::string_view last = LastWord(name);
  return last.size() == name.size() || last.empty() || count < candidates.size()
             ? std::string()
             : SameWord(last, candidates);
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& candidates) {
  if (const std::string_view before = name.substr(0, name.find(':'));
      before.size() < name.size() && Contains(candidates, before)) {
    return fmt::format("a space is missing after `{}:`", before);
  }
  const std::string closest = Closest(name, candidates);
  if (!closest.empty()) return "did you mean " + Quote(closest) + "?";
  if (candidates.empty() || candidates.size() > kMostListed) return {};
  std::string list = candidates.size() == 1 ? "the only one is " : "one of ";
  for (size_t i = 0; i < candidates.size(); ++i) {
    list += (i > 0 ? ", " : "") + Quote(candidates[i]);
  }
  return list;
}

}  // namespace shardinit
