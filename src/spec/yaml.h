// Parses YAML text into a tree whose every node knows where it was written. Scalars stay text: the
// key that a scalar stands under decides what it means.
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

// A node is immutable once made: an alias is a second pointer to its anchor's node, and overrides
// build new nodes on the path that they change.
struct Node {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMap };
  struct Entry {
    const Node* key;  // null in a sequence
    const Node* value;
  };

  Kind kind = Kind::kNull;
  bool quoted = false;  // a scalar in quotes is text, never a number
  // `text` is the bytes in the source, between the quotes if there are any: places inside it are
  // exact.
  bool verbatim = false;
  // Some entries of this map were wrong; they were reported and left out.
  bool incomplete = false;
  // This null stands for a value that is given twice, which was reported.
  bool ambiguous = false;
  // This map replaces what it is merged over; other maps are merged key by key.
  bool whole = false;
  uint8_t height = 1;  // levels of nesting, this one included
  uint32_t size = 1;   // nodes from here on, each alias counted in full
  Span span;           // with the quotes; of a collection, its first line
  std::string_view text;
  std::vector<Entry> entries;

  bool IsNull() const { return kind == Kind::kNull; }
  bool IsScalar() const { return kind == Kind::kScalar; }
  bool IsSequence() const { return kind == Kind::kSequence; }
  bool IsMap() const { return kind == Kind::kMap; }

  // Makes this at least as high as one that holds `child`. NodeStore bounds the depth.
  void Enclose(const Node& child) {
    height = std::max(height, static_cast<uint8_t>(child.height + 1));
  }

  // These return null if a map has no such key.
  const Entry* FindEntry(std::string_view key) const;
  const Node* Find(std::string_view key) const {
    const Entry* const entry = FindEntry(key);
    return entry == nullptr ? nullptr : entry->value;
  }
};

// Names a node for messages about mistakes: "a list", "`4096`", "nothing".
std::string Describe(const Node& node);

// Owns nodes, and bounds how many a spec with all its files and aliases has.
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
  // Makes a scalar of text that stands in a source, or that Keep() returned.
  Node* NewScalar(std::string_view text, Span span) {
    Node* node = New(Node::Kind::kScalar, span);
    node->verbatim = true;
    node->text = text;
    return node;
  }
  Node* Copy(const Node& node) { return &nodes_.emplace_back(node); }
  std::string_view Keep(std::string text) { return texts_.emplace_back(std::move(text)); }
  // Counts nodes, written or through an alias; returns false if there are too many.
  bool Count(uint64_t nodes) { return (count_ += nodes) <= kMostNodes; }

 private:
  std::deque<Node> nodes_;
  std::deque<std::string> texts_;
  uint64_t count_ = 0;
};

// A tree together with the store that owns its nodes.
struct NodeTree {
  NodeStore store;
  const Node* root = nullptr;
};
std::shared_ptr<const NodeTree> CopyTree(const Node& root);

// Returns the place of `length` bytes from byte `offset` on.
Span SpanIn(const Source& source, size_t offset, size_t length);

// The limit is ten times the largest spec that anyone has a reason to write: a file must be refused
// within a second or so, and is read at some 10 MB/s.
inline constexpr size_t kLargestYaml = 8 << 20;

// Parses source.text, UTF-8 of at most kLargestYaml, from byte `begin` (of its first line) on.
// Returns null if the text is no tree at all; otherwise everything reported is also repaired. Text
// without content gives a null node whose line is 0.
const Node* ParseYaml(const Source& source, size_t begin, NodeStore& store,
                      Diagnostics& diagnostics);

}  // namespace shardinit
