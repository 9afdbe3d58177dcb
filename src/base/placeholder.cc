#include "base/placeholder.h"

#include <algorithm>

#include "base/text.h"

namespace shardinit {
namespace {

constexpr Placeholder kPointer = {
    "a pointer of Git LFS", "run `git lfs pull` in its folder, which replaces `{}` by the file"};
constexpr Placeholder kPage = {
    "a page of HTML",
    "download the file again, with the credentials that the site asks for: "
    "`{}`"};
constexpr Placeholder kAnswer = {"a page of XML", "download the file again: `{}`"};

// The first bytes of placeholders, in lower case.
constexpr struct {
  std::string_view begin;
  const Placeholder* kind;
} kBegins[] = {
    {"version https://git-lfs.github.com/spec/", &kPointer},
    {"version https://hawser.github.com/spec/", &kPointer},
    {"# xet version", &kPointer},
    {"<!doctype html", &kPage},
    {"<html", &kPage},
    {"<?xml", &kAnswer},
};

}  // namespace

const Placeholder* FindPlaceholder(std::string_view head) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // U+FEFF may precede the text
  if (head.starts_with(kMark)) head.remove_prefix(kMark.size());
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  for (const auto& row : kBegins) {
    if (Lower(head.substr(0, row.begin.size())) == row.begin) return row.kind;
  }
  return nullptr;
}

}  // namespace shardinit
