#include "spec/option_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace shardinit {

const Source* AddOption(const std::string& option, const std::string& text,
                        Diagnostics& diagnostics) {
  const Source* source = diagnostics.Add({option, text});
  const std::optional<BadText> bad = FindBadText(source->text);
  if (!bad) return source;
  return diagnostics.Error({source, 0, 0, 0},
                           fmt::format("{} in {}", bad->what, Quote(source->text)));
}

Span PlaceIn(const Source& source, size_t begin, size_t length) {
  return {&source, 1, static_cast<uint32_t>(begin + 1),
          static_cast<uint32_t>(std::max<size_t>(length, 1))};
}

const Node* ParseValue(const Source& source, size_t begin, NodeStore& store,
                       Diagnostics& diagnostics) {
  const Node* value = ParseYaml(source, begin, store, diagnostics);
  const std::string_view text = std::string_view(source.text).substr(begin);
  if (value == nullptr) return nullptr;
  if (value->span.line == 0) {  // `path=` means the same as `path:` in a file
    return store.New(Node::Kind::kNull, PlaceIn(source, 0, source.text.size()));
  }
  const size_t first = std::min(text.find_first_not_of(' '), text.size());
  const bool flow = text.substr(first).starts_with('{') || text.substr(first).starts_with('[');
  if ((value->IsMap() || value->IsSequence()) && !flow) {
    return diagnostics.Error(PlaceIn(source, begin, text.size()),
                             "a mapping or list on the command line needs brackets",
                             value->IsMap() ? "write `{key: value}`" : "write `[a, b]`");
  }
  return value;
}

const Node* Extended(const Node& collection, Node::Entry entry, NodeStore& store) {
  Node* copy = store.Copy(collection);
  copy->entries.push_back(entry);
  copy->Enclose(*entry.value);
  return copy;
}

const Node* Replaced(const Node& collection, size_t index, const Node* value, NodeStore& store) {
  Node* copy = store.Copy(collection);
  copy->entries[index].value = value;
  copy->Enclose(*value);
  return copy;
}

const Node* WithEntry(const Node& map, Span place, std::string_view key, const Node* value,
                      NodeStore& store) {
  for (size_t i = 0; i < map.entries.size(); ++i) {
    if (map.entries[i].key->text == key) return Replaced(map, i, value, store);
  }
  return Extended(map, {store.NewScalar(key, place), value}, store);
}

}  // namespace shardinit
