// Parses YAML text into a tree whose nodes know their positions. Scalars stay text: the key of a
// scalar decides its type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"
#include "base/source.h"

namespace shardinit {

// A node does not change once it is built. An alias is another pointer to its anchor's node.
// Overrides build new nodes along the path that they change.
struct Node {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMap };
  struct Entry {
    const Node* key;  // null in a sequence
    const Node* value;
  };

  Kind kind = Kind::kNull;
  bool quoted = false;  // a quoted scalar is text, never a number
  // `text` is exactly the source's bytes (without quotes), so positions inside it are exact.
  bool verbatim = false;
  // Some entries of this map were invalid; they were reported and dropped.
  bool incomplete = false;
  // This null replaces a duplicate value, which was reported.
  bool ambiguous = false;
  // This map replaces the value that it is merged over; other maps are merged key by key.
  bool whole = false;
  uint8_t height = 1;  // levels of nesting, including this one
  uint32_t size = 1;   // nodes from here down; each alias counts in full
  Span span;           // includes quotes; for a collection, its first line
  std::string_view text;
  std::vector<Entry> entries;

  bool IsNull() const { return kind == Kind::kNull; }
  bool IsScalar() const { return kind == Kind::kScalar; }
  bool IsSequence() const { return kind == Kind::kSequence; }
  bool IsMap() const { return kind == Kind::kMap; }

  // Makes this node at least one level higher than `child`. NodeStore limits the depth.
  void Enclose(const Node& child) {
    height = std::max(height, static_cast<uint8_t>(child.height + 1));
  }

  // These return null if the map does not have the key.
  const Entry* FindEntry(std::string_view key) const;
  const Node* Find(std::string_view key) const {
    const Entry* const entry = FindEntry(key);
    return entry == nullptr ? nullptr : entry->value;
  }
};

// Describes a node for error messages: "a list", "`4096`", "nothing".
std::string Describe(const Node& node);

// Owns nodes, and limits their number in a spec with all its files and aliases.
class NodeStore {
 public:
  static constexpr size_t kMostNodes = 1'000'000;
  static constexpr int kDeepest = 64;

  Node* New(Node::Kind kind = Node::Kind::kNull, Span span = {}) {
    Node& node = nodes_.emplace_back();
    node.kind = kind;
    node.span = span;
    return &node;
  }
  // Creates a scalar from text of a source, or text that Keep() returned.
  Node* NewScalar(std::string_view text, Span span) {
    Node* node = New(Node::Kind::kScalar, span);
    node->verbatim = true;
    node->text = text;
    return node;
  }
  Node* Copy(const Node& node) { return &nodes_.emplace_back(node); }
  std::string_view Keep(std::string text) { return texts_.emplace_back(std::move(text)); }
  // Counts nodes, written or aliased. Returns false if there are too many.
  bool Count(uint64_t nodes) { return (count_ += nodes) <= kMostNodes; }

 private:
  std::deque<Node> nodes_;
  std::deque<std::string> texts_;
  uint64_t count_ = 0;
};

// A tree and the store that owns its nodes.
struct NodeTree {
  NodeStore store;
  const Node* root = nullptr;
};
std::shared_ptr<const NodeTree> CopyTree(const Node& root);

// Returns the position of `length` bytes from byte `offset`.
Span SpanIn(const Source& source, size_t offset, size_t length);

// Ten times the size of the largest reasonable spec. Larger files must be refused within about a
// second, and parsing runs at about 10 MB/s.
inline constexpr size_t kLargestYaml = 8 << 20;

// Parses source.text, UTF-8 of at most kLargestYaml bytes, starting at byte `begin` (in its first
// line). Returns null if no tree can be built; otherwise all reported errors are also repaired.
// Text without content yields a null node whose line is 0.
const Node* ParseYaml(const Source& source, size_t begin, NodeStore& store,
                      Diagnostics& diagnostics);

}  // namespace shardinit
