#include "spec/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/text.h"

namespace shardinit {
namespace {

constexpr size_t kWidth = 100;

// Returns whether quoted text means the same without quotes, to this program and to editors.
bool IsWord(std::string_view text) {
  const auto is = [](std::string_view letters) {
    return [letters](char c) { return std::isalnum(c) != 0 || letters.find(c) != letters.npos; };
  };
  const std::string lower = Lower(text);
  const bool is_other = lower == "true" || lower == "false" || lower == "null" || lower == "yes" ||
                        lower == "no" || lower == "on" || lower == "off";
  return !text.empty() && !is_other && (std::isalpha(text[0]) != 0 || text[0] == '<') &&
         std::ranges::all_of(text, is("<>/._-"));
}

// Returns whether text is a number, an expression or a word that YAML leaves unchanged, even in
// brackets.
bool IsPlain(std::string_view text) {
  return !text.empty() && text.find_first_of("\"#{}[],\n") == text.npos &&
         std::string_view("'&*!|>%@` ?:").find(text.front()) == text.npos &&
         !text.starts_with("- ") && text != "-" && text != "~" && text != "null" &&
         text.find(": ") == text.npos && text.back() != ':' && text.back() != ' ';
}

std::string Scalar(std::string_view text, bool quoted) {
  if (quoted ? IsWord(text) : IsPlain(text)) return std::string(text);
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text, at);
    if (text[at] == '"' || text[at] == '\\') {
      out += '\\';
      out += text[at];
    } else if (text[at] == '\n' || text[at] == '\t' || IsUnsafe(c.code)) {
      out += c.code < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c.code))
                              : fmt::format("\\U{:08x}", static_cast<uint32_t>(c.code));
    } else {
      out += text.substr(at, c.size);
    }
    at += c.size;
  }
  return out + '"';
}

std::string Flow(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kScalar:
      return Scalar(node.text, node.quoted);
    case Node::Kind::kSequence:
    case Node::Kind::kMap:
      break;
  }
  std::string out(1, node.IsMap() ? '{' : '[');
  for (const Node::Entry& entry : node.entries) {
    if (out.size() > 1) out += ", ";
    if (node.IsMap()) out += Scalar(entry.key->text, false) + ": ";
    out += Flow(*entry.value);
  }
  return out + (node.IsMap() ? '}' : ']');
}

void WriteMembers(const Node& map, size_t indent, std::string& out) {
  for (const Node::Entry& entry : map.entries) {
    const std::string key = fmt::format("{:{}}{}:", "", indent, Scalar(entry.key->text, false));
    const std::string flow = Flow(*entry.value);
    const bool fits = key.size() + 1 + flow.size() <= kWidth;
    if (entry.value->IsMap() && !fits) {
      out += key + '\n';
      WriteMembers(*entry.value, indent + 2, out);
    } else if (entry.value->IsSequence() && !fits) {
      out += key + '\n';
      for (const Node::Entry& item : entry.value->entries)
        out += fmt::format("{:{}}- {}\n", "", indent + 2, Flow(*item.value));
    } else {
      out += fmt::format("{} {}\n", key, flow);
    }
  }
}

}  // namespace

std::string WriteYaml(const Node& map) {
  std::string out;
  WriteMembers(map, 0, out);
  return out;
}

}  // namespace shardinit
