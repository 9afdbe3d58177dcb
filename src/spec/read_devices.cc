// Reads the key `devices` of a mesh: a named order, or ids, here or in a file.
#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "spec/parser.h"

namespace shardinit {
namespace {

constexpr int64_t kLargestId = std::numeric_limits<int32_t>::max();  // as in JAX
constexpr std::string_view kIdHint = "ids are whole numbers from 0 to 2147483647";

std::optional<int64_t> IdOf(std::string_view text) {
  const std::optional<int64_t> id = ParseNumber<int64_t>(text);
  return id && *id >= 0 && *id <= kLargestId && text[0] != '-' ? id : std::nullopt;
}

// Reads ids. Rows may be nested lists, as NumPy writes a mesh.
void ReadIds(SpecParser& parser, const Node& list, std::vector<Located<int64_t>>& ids) {
  for (const Node::Entry& item : list.entries) {
    const Node& node = *item.value;
    if (node.IsSequence()) {
      ReadIds(parser, node, ids);
    } else if (const auto id = node.IsScalar() && !node.quoted ? IdOf(node.text) : std::nullopt) {
      ids.push_back({*id, node.span});
    } else {
      parser.Error(node,
                   fmt::format("a device is a number, not {}{}", node.quoted ? "the text " : "",
                               Describe(node)),
                   std::string(kIdHint));
      return;
    }
  }
}

// Reads numbers separated by white space, commas and brackets; `#` begins a comment.
void ReadIdFile(const Source& source, Diagnostics& diagnostics,
                std::vector<Located<int64_t>>& ids) {
  const std::string_view text = source.text;
  constexpr std::string_view kBetween = " \t\r,[]";
  uint32_t line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = text.substr(begin, std::min(end, text.find('#', begin)) - begin);
    for (size_t at = 0; (at = row.find_first_not_of(kBetween, at)) != row.npos;) {
      const size_t stop = std::min(row.find_first_of(kBetween, at), row.size());
      const Span span = {&source, line, static_cast<uint32_t>(at + 1),
                         static_cast<uint32_t>(stop - at)};
      const auto id = IdOf(row.substr(at, stop - at));
      if (!id) {
        diagnostics.Error(span,
                          fmt::format("{} is not the id of a device",
                                      Quote(std::string(row.substr(at, stop - at)))),
                          std::string(kIdHint));
        return;
      }
      ids.push_back({*id, span});
      at = stop;
    }
    begin = end + 1;
  }
  if (ids.empty()) diagnostics.Error({&source, 0, 0, 0}, "the file lists no devices");
}

}  // namespace

void SpecParser::ReadDevices(const Node::Entry& entry, ModelSpec& model) {
  const Node& node = *entry.value;
  DevicesSpec& devices = model.devices.emplace();
  devices.span = node.span;
  if (node.IsSequence()) {
    ReadIds(*this, node, devices.ids);
    if (node.entries.empty()) Error(node, "`devices` is empty");
    return;
  }
  if (!node.IsScalar() || IsBoolean(node) || IsNumber(node) || node.text.empty()) {
    Error(
        node,
        fmt::format("`devices` must be an order, a list of ids or a file, not {}", Describe(node)),
        "write it as in `hybrid_ring_64x4`, `[0, 1, 3, 2]` or `devices.txt`");
    return;
  }
  if (node.text.find_first_of("./") == node.text.npos) {
    devices.order = Text(node);
    return;
  }
  const std::filesystem::path file =
      std::filesystem::path(node.span.source->name).parent_path() / node.text;
  std::string text;
  try {
    RequireLocal(std::string(node.text));
    text = ReadFile(file.string(), kLargestYaml);
  } catch (const class Error& error) {
    Error(node, error.what(),
          error.hint().empty() ? "paths are relative to the file that names them" : error.hint());
    return;
  }
  const Source* source = diagnostics().Add({file.string(), std::move(text)});
  if (const auto bad = FindBadText(source->text)) {
    Error(node, fmt::format("{} is not text: {}", Quote(file.string()), bad->what));
    return;
  }
  ReadIdFile(*source, diagnostics(), devices.ids);
}

}  // namespace shardinit
