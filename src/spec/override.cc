#include "spec/override.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/suggest.h"
#include "base/text.h"
#include "spec/include.h"
#include "spec/option_text.h"

namespace shardinit {

const Node* ApplyMesh(const Node* root, const std::string& mesh, NodeStore& store,
                      Diagnostics& diagnostics) {
  if (mesh.empty()) return root;
  const Source* const option = AddOption("--mesh", mesh, diagnostics);
  if (option == nullptr) return root;
  const Source& source = *option;
  const Node* const old_mesh = root->Find("mesh");
  // If the spec has no mesh, this becomes its mesh.
  const bool declares = old_mesh == nullptr;
  const Node* const empty = store.New(Node::Kind::kMap, PlaceIn(source, 0, source.text.size()));
  const Node* const axes = declares ? empty : old_mesh->Find("axes");
  if (axes == nullptr || !axes->IsMap()) return root;  // reported when it is read
  std::vector<std::string> names;
  for (const Node::Entry& entry : axes->entries) names.emplace_back(entry.key->text);

  Node* chosen = store.Copy(*axes);
  chosen->entries.clear();
  const std::string_view text = source.text;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const Span name_span = PlaceIn(source, begin, name.size());
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size()) {
      diagnostics.Error(PlaceIn(source, begin, item.size()),
                        "mesh axes have the form `axis=size,axis=size`");
    } else if (chosen->Find(name) != nullptr) {
      diagnostics.Error(name_span, fmt::format("mesh axis {} is given twice", Quote(name)));
    } else if (!declares && axes->Find(name) == nullptr) {
      diagnostics.Error(name_span, fmt::format("the spec declares no mesh axis {}", Quote(name)),
                        DidYouMean(name, names));
    } else {
      const std::string_view size = item.substr(equals + 1);
      chosen->entries.push_back(
          {store.NewScalar(name, name_span),
           store.NewScalar(size, PlaceIn(source, begin + equals + 1, size.size()))});
    }
    begin = end + 1;
  }
  for (const Node::Entry& entry : axes->entries) {
    if (chosen->Find(entry.key->text) == nullptr) {
      chosen->entries.push_back({entry.key, store.NewScalar("1", entry.key->span)});
    }
  }
  const Node& rest = declares ? *empty : *old_mesh;
  return WithEntry(*root, empty->span, "mesh", WithEntry(rest, empty->span, "axes", chosen, store),
                   store);
}

const Node* ApplySharding(const Node* root, const std::string& sharding, NodeStore& store,
                          Diagnostics& diagnostics) {
  if (sharding.empty()) return root;
  const Source* source = AddOption("--sharding", sharding, diagnostics);
  const Node* value = source != nullptr ? ParseValue(*source, 0, store, diagnostics) : nullptr;
  return value == nullptr ? root : WithSharding(*root, *value, store, diagnostics);
}

const Node* ApplyTraining(const Node* root, const std::string& option, const std::string& key,
                          const std::string& value, NodeStore& store, Diagnostics& diagnostics) {
  const Source* source = AddOption(option, value, diagnostics);
  if (source == nullptr) return root;
  const Span place = PlaceIn(*source, 0, source->text.size());
  const Node* number = store.NewScalar(source->text, place);
  const Node* training = root->Find("training");
  // A malformed `training` is reported when it is read.
  if (training != nullptr && !training->IsMap() && !training->IsNull()) return root;
  if (training == nullptr || training->IsNull()) training = store.New(Node::Kind::kMap, place);
  training = WithEntry(*training, place, store.Keep(key), number, store);
  return WithEntry(*root, place, "training", training, store);
}

const Node* ApplySource(const Node* root, const std::string& source, NodeStore& store,
                        Diagnostics& diagnostics) {
  const Source* const option = AddOption("--source", source, diagnostics);
  if (option == nullptr) return root;
  const std::string_view text = option->text;
  const size_t equals = text.find('=');
  if (equals == text.npos || equals == 0 || equals + 1 == text.size()) {
    diagnostics.Error(PlaceIn(*option, 0, text.size()), "a source has the form `name=folder`");
    return root;
  }
  const std::string_view name = text.substr(0, equals);
  const Node* const sources = root->Find("sources");
  const Node* const declared = sources != nullptr ? sources->Find(name) : nullptr;
  if (declared == nullptr) {
    std::vector<std::string> names;
    if (sources != nullptr) {
      for (const Node::Entry& entry : sources->entries) names.emplace_back(entry.key->text);
    }
    diagnostics.Error(PlaceIn(*option, 0, name.size()),
                      fmt::format("the spec declares no source {}", Quote(name)),
                      DidYouMean(name, names));
    return root;
  }
  const std::string_view folder = text.substr(equals + 1);
  const Span place = PlaceIn(*option, equals + 1, folder.size());
  const Node* const map = declared->IsMap() ? declared : store.New(Node::Kind::kMap, place);
  const Node* const path = WithEntry(*map, place, "path", store.NewScalar(folder, place), store);
  return WithEntry(*root, place, "sources", WithEntry(*sources, place, name, path, store), store);
}

const Node* ReadOption(const std::string& option, const std::string& text, NodeStore& store,
                       Diagnostics& diagnostics) {
  const Source* source = AddOption(option, text, diagnostics);
  const Node* value = source != nullptr ? ParseValue(*source, 0, store, diagnostics) : nullptr;
  return value != nullptr ? LoadNamedFiles(*value, {}, store, diagnostics) : nullptr;
}

}  // namespace shardinit
