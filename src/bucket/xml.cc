#include "bucket/xml.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace shardinit {
namespace {

// Appends a code point in UTF-8.
void AppendCodePoint(unsigned code, std::string* text) {
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  text->push_back(static_cast<char>((0xff00 >> (more + 1) & 0xff) | code >> (6 * more)));
  for (int i = more; i-- > 0;) {
    text->push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3f)));
  }
}

std::string Decoded(std::string_view xml) {
  static constexpr std::pair<std::string_view, char> kNames[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  constexpr size_t kLongest = 12;  // `&#x0010FFFF;`
  std::string text;
  for (size_t i = 0; i < xml.size(); ++i) {
    const size_t length = xml[i] == '&' ? xml.substr(i, kLongest).find(';') : xml.npos;
    if (length == xml.npos) {
      text.push_back(xml[i]);
      continue;
    }
    std::string_view entity = xml.substr(i + 1, length - 1);
    if (entity.starts_with('#')) {
      const bool is_hex = entity.starts_with("#x");
      entity.remove_prefix(is_hex ? 2 : 1);
      unsigned code = 0;
      std::from_chars(entity.data(), entity.data() + entity.size(), code, is_hex ? 16 : 10);
      AppendCodePoint(code & 0x1fffff, &text);
    } else {
      for (const auto& [name, c] : kNames) {
        if (entity == name) text.push_back(c);
      }
    }
    i += length;
  }
  return text;
}

}  // namespace

std::vector<std::string_view> XmlElements(std::string_view xml, std::string_view name) {
  std::vector<std::string_view> elements;
  const std::string close = fmt::format("</{}>", name);
  const std::string open = fmt::format("<{}", name);
  for (size_t at = 0; (at = xml.find(open, at)) != xml.npos;) {
    at += open.size();
    // A longer name begins the same way.
    if (at == xml.size() || std::string_view("> \n").find(xml[at]) == xml.npos) continue;
    const size_t begin = xml.find('>', at);
    if (begin == xml.npos) break;
    if (xml[begin - 1] == '/') {  // an element without content
      at = begin;
      continue;
    }
    const size_t end = xml.find(close, begin);
    if (end == xml.npos) break;
    elements.push_back(xml.substr(begin + 1, end - begin - 1));
    at = end + close.size();
  }
  return elements;
}

std::string XmlText(std::string_view xml, std::string_view name) {
  const std::vector<std::string_view> elements = XmlElements(xml, name);
  return elements.empty() ? std::string() : Decoded(elements[0]);
}

}  // namespace shardinit
