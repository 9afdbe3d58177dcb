// Parses YAML with yaml-cpp; no other file uses it. libyaml's events say where values end, which
// spec/yaml_text.cc has to compute. But yaml-cpp is the required parser, it cannot read libyaml's
// events, and all error messages would have to be rewritten. Works around these limits:
//  - Only events are used: yaml-cpp's own tree expands aliases without bound, keeps duplicate keys
//    and guesses types by the C++ locale. Builder limits depth and number of nodes, and drops
//    duplicates.
//  - UTF-16 and control characters are rejected first: yaml-cpp would convert UTF-16, so that
//    positions no longer match the file, and accepts control characters as text (ParseYaml).
//  - A long line or a bracket around everything is rejected first: yaml-cpp keeps about 100 bytes
//    for each token until it knows that none of them is a key (kLongestLine, IsOneBracket).
//  - yaml-cpp reports where a value starts, but not where it ends or whether it was quoted, and
//    does not locate empty values. YamlText and OnNull search the text for these.
//  - A plain scalar continues on the next line if that line is indented. This is legal YAML, but
//    always an indentation error in a spec (OnScalar).
//  - yaml-cpp reports an unclosed quote at the end of the file or not at all (PlaceScalar, Fail).
//  - It reads text that is less indented than the first key as a second document (OnDocumentStart).
//  - It accepts tags, and knows `<<` only in its own tree. Both are rejected (CheckTag, AttachKey).
//  - Its message names a grammar rule and the position where it gave up. Fail looks for the open
//    bracket or quote, and ExplainSyntax describes the actual mistake.
#include "spec/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <istream>
#include <optional>
#include <set>
#include <streambuf>
#include <string_view>
#include <unordered_map>

#include "base/text.h"
#include "spec/yaml_text.h"

namespace shardinit {
namespace {

// Reads from a string_view without copying it.
class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());
    setg(begin, begin, begin + text.size());
  }
};

// Thrown to leave yaml-cpp when parsing cannot usefully continue.
struct Stop {};

struct Problem {
  size_t offset;
  Span span;
  std::string message, hint;
  std::optional<Span> note_span;
  std::string note;
};

// Builds the tree from yaml-cpp's events. Keeps problems until the end, because a later syntax
// error may be the cause of an earlier one.
class Builder : public YAML::EventHandler {
 public:
  Builder(const Source& source, size_t begin, NodeStore& store)
      : text_(source, begin), store_(store) {}

  const Node* root() const { return root_; }
  void Report(Diagnostics& diagnostics) const {
    for (const Problem& problem : problems_) {
      diagnostics.Error(problem.span, problem.message, problem.hint);
      if (problem.note_span) diagnostics.Note(*problem.note_span, problem.note);
    }
  }

  // Explains yaml-cpp's message. Its mark is often where it gave up, so this looks for the unclosed
  // bracket or quote.
  void Fail(const YAML::ParserException& error) {
    const size_t offset = text_.OffsetOf(std::max(error.mark.pos, 0));
    const std::string& what = error.msg;
    if (!open_.empty() && open_.back().flow && what.find("flow not found") != std::string::npos) {
      FailUnclosed(open_.back(), offset);
      return;
    }
    if (what == YAML::ErrorMsg::FLOW_END) {
      // The scanner runs ahead of the events, so the bracket may not be in open_ yet.
      const auto outermost = std::ranges::find_if(open_, [](const Level& l) { return l.flow; });
      const std::optional<size_t> bracket =
          text_.FindOpenBracket(outermost == open_.end() ? last_ : outermost->offset, offset);
      if (bracket) {
        problems_.push_back(
            {offset,
             text_.SpanAt(offset, 1),
             fmt::format("`{}` cannot close `{}`", text_.At(offset)[0], text_.At(*bracket)[0]),
             {},
             text_.SpanAt(*bracket, 1),
             "opened here"});
        return;
      }
    }
    if (what == YAML::ErrorMsg::EOF_IN_SCALAR) {
      if (const std::optional<size_t> quote = text_.FindOpenQuote(last_)) {
        Add(*quote, text_.SpanAt(*quote, 1), "this quote is never closed");
        return;
      }
    }
    // A scalar that continued onto this line has the same cause.
    const size_t line = text_.SpanAt(offset, 1).line;
    std::erase_if(problems_, [&](const Problem& p) {
      return p.offset > 0 && p.span.line + 1 >= line && p.offset < offset &&
             p.message.starts_with("this text continues");
    });
    const SyntaxProblem problem = ExplainSyntax(what, text_, offset);
    Add(offset, problem.span, problem.message, problem.hint);
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (has_document_) {
      const size_t offset = text_.OffsetOf(mark.pos);
      if (text_.At(offset).starts_with("---")) {
        Add(offset, text_.SpanAt(offset, 3), "a second YAML document starts here",
            "a spec is one document; split the file");
      } else {
        Add(offset, text_.LineSpan(offset), "this does not belong to the mapping or list above it",
            "check the indentation");
      }
      throw Stop();
    }
    has_document_ = true;
  }

  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    size_t offset = text_.OffsetOf(mark.pos);
    const size_t length = text_.NullLength(offset);
    Span span = text_.SpanAt(offset, std::max<size_t>(length, 1));
    // An empty value gets its key's position.
    if (length == 0 && !open_.empty() && open_.back().key != nullptr) span = open_.back().key->span;
    Node* node = NewNode(Node::Kind::kNull, span);
    SetAnchor(anchor, node, span);
    Attach(node, offset);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t id) override {
    const size_t offset = text_.OffsetOf(mark.pos);
    const Span span = text_.WordSpan(offset);
    const Anchor& anchor = anchors_[id - 1];
    if (anchor.node == nullptr) {
      problems_.push_back({offset,
                           span,
                           "this alias is inside the value that it names",
                           {},
                           anchor.span,
                           "the value starts here"});
      throw Stop();
    }
    if (!store_.Count(anchor.node->size)) {
      Add(offset, span, fmt::format("aliases expand to more than {} values", NodeStore::kMostNodes),
          "use `repeat` for layers that are alike");
      throw Stop();
    }
    if (open_.size() + anchor.node->height > NodeStore::kDeepest) {
      Add(offset, span, fmt::format("aliases nest more than {} levels deep", NodeStore::kDeepest));
      throw Stop();
    }
    Attach(anchor.node, offset, true);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const size_t begin = text_.OffsetOf(mark.pos);
    CheckTag(tag, Node::Kind::kScalar, mark);
    const ScalarPlace place = text_.PlaceScalar(begin, value);
    Node* node = NewNode(Node::Kind::kScalar, place.span);
    node->quoted = place.style != ScalarPlace::Style::kPlain || tag == "tag:yaml.org,2002:str";
    node->verbatim = place.verbatim;
    node->text = place.verbatim ? place.text : store_.Keep(value);
    if (place.unterminated) {
      Add(place.offset, text_.SpanAt(place.offset, 1), "this quote is never closed");
      throw Stop();
    }
    if (place.style == ScalarPlace::Style::kPlain && !place.verbatim) {
      Add(place.offset, place.span, "this text continues on the next line",
          "check the indentation of the next line, or put the text in quotes");
      // The first line represents the whole scalar.
      node->text = place.text.substr(0, place.span.length);
      node->verbatim = true;
    }
    SetAnchor(anchor, node, place.span);
    Attach(node, begin);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    Open(Node::Kind::kSequence, mark, tag, anchor, style);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    Open(Node::Kind::kMap, mark, tag, anchor, style);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Level {
    Node* node;
    size_t offset;
    bool flow;
    YAML::anchor_t anchor;
    const Node* key = nullptr;  // key of the entry whose value comes next
    bool drop = false;          // that entry has an invalid key
  };
  struct Anchor {
    const Node* node = nullptr;  // null while its node is open
    Span span;
  };

  Node* NewNode(Node::Kind kind, Span span) {
    if (!store_.Count(1)) {
      Add(0, span, fmt::format("the spec has more than {} values", NodeStore::kMostNodes),
          "use `repeat` for layers that are alike");
      throw Stop();
    }
    return store_.New(kind, span);
  }

  void Open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YAML::EmitterStyle::value style) {
    const size_t offset = text_.OffsetOf(mark.pos);
    CheckTag(tag, kind, mark);
    const bool flow = style == YAML::EmitterStyle::Flow;
    const Span span = text_.CollectionSpan(offset, flow);
    if (open_.size() >= NodeStore::kDeepest) {
      Add(offset, span, fmt::format("nested more than {} levels deep", NodeStore::kDeepest));
      throw Stop();
    }
    last_ = std::max(last_, offset);
    SetAnchor(anchor, nullptr, span);
    open_.push_back(
        {.node = NewNode(kind, span), .offset = offset, .flow = flow, .anchor = anchor});
  }

  void Close() {
    const Level level = open_.back();
    open_.pop_back();
    Node& node = *level.node;
    if (node.IsMap()) DropDuplicates(node);
    node.entries.shrink_to_fit();
    uint64_t size = 1;
    for (const Node::Entry& entry : node.entries) {
      size += entry.value->size + (entry.key != nullptr ? 1 : 0);
      node.Enclose(*entry.value);
    }
    node.size = static_cast<uint32_t>(size);  // Count keeps this within kMostNodes
    SetAnchor(level.anchor, &node, node.span);
    Attach(&node, level.offset);
  }

  void Attach(const Node* node, size_t offset, bool is_alias = false) {
    last_ = std::max(last_, offset);
    if (open_.empty()) {
      root_ = node;
      return;
    }
    Level& level = open_.back();
    if (level.node->IsSequence()) {
      level.node->entries.push_back({nullptr, node});
    } else if (level.key == nullptr) {
      AttachKey(level, node, offset, is_alias);
    } else {
      if (level.drop) {
        level.node->incomplete = true;
      } else {
        level.node->entries.push_back({level.key, node});
      }
      level.key = nullptr;
    }
  }

  void AttachKey(Level& level, const Node* key, size_t offset, bool is_alias) {
    level.key = key;
    level.drop = true;
    if (is_alias) {
      Add(offset, text_.WordSpan(offset), "a key cannot be an alias", "write the name");
    } else if (key->IsNull()) {
      Add(offset, key->span, "a key is missing here", "a key that is called null needs quotes");
    } else if (!key->IsScalar()) {
      Add(offset, key->span, fmt::format("a key must be a name, not {}", Describe(*key)));
    } else if (key->text == "<<" && !key->quoted) {
      Add(offset, key->span, "merge keys are not supported", "use `include`, or repeat the keys");
    } else {
      level.drop = false;
    }
  }

  void DropDuplicates(Node& map) {
    std::unordered_map<std::string_view, const Node*> first;
    first.reserve(map.entries.size());
    std::set<std::string_view> twice;
    std::erase_if(map.entries, [&](const Node::Entry& entry) {
      const auto [earlier, is_new] = first.try_emplace(entry.key->text, entry.key);
      if (!is_new) {
        problems_.push_back({0, entry.key->span,
                             fmt::format("key {} is given twice", Quote(entry.key->text)),
                             "remove one of them", earlier->second->span, "first here"});
        twice.insert(entry.key->text);
      }
      return !is_new;
    });
    if (twice.empty()) return;
    // The intended value is unknown. If it is a mapping, the duplicate may be the rest of it.
    for (Node::Entry& entry : map.entries) {
      if (twice.count(entry.key->text) == 0) continue;
      Node* value = store_.New();
      if (entry.value->IsMap()) {
        *value = *entry.value;
        value->incomplete = true;
      } else {
        value->span = entry.value->span;
        value->ambiguous = true;
      }
      entry.value = value;
    }
  }

  void FailUnclosed(const Level& level, size_t offset) {
    // The bracket caused the problems found after it.
    std::erase_if(problems_, [&](const Problem& p) { return p.offset > level.offset; });
    const bool map = level.node->IsMap();
    // A bracket may be inside a word: `[layers.{i}.weight]`, `[widths[i]]`.
    const std::string_view text = text_.At(0);
    const size_t inner = text.find_last_of("{[", offset);
    const bool in_word = inner != text.npos && inner > level.offset &&
                         text.find_first_of(" \t\n[{,:", inner - 1) != inner - 1;
    Add(level.offset, text_.SpanAt(level.offset, 1),
        fmt::format("`{}` is never closed", map ? '{' : '['),
        in_word ? fmt::format("text that contains `{}` needs quotes here", text[inner])
                : fmt::format("a `{}` or a comma is missing at or before line {}", map ? '}' : ']',
                              text_.SpanAt(offset, 1).line));
  }

  void CheckTag(const std::string& tag, Node::Kind kind, const YAML::Mark& mark) {
    // "?" is a plain node, "!" a quoted one or an explicit `!`.
    if (tag.empty() || tag == "?" || tag == "!") return;
    constexpr std::string_view kCore = "tag:yaml.org,2002:";
    if (tag.starts_with(kCore)) {
      const std::string_view name = std::string_view(tag).substr(kCore.size());
      const bool fits = kind == Node::Kind::kMap ? name == "map"
                        : kind == Node::Kind::kSequence
                            ? name == "seq"
                            : name == "str" || name == "int" || name == "float";
      if (fits) return;
    }
    const size_t offset = text_.OffsetOf(mark.pos);
    Add(offset, text_.TagSpan(offset), "YAML tags are not allowed in a spec", "remove the tag");
  }

  void SetAnchor(YAML::anchor_t anchor, const Node* node, Span span) {
    if (anchor == 0) return;
    if (anchors_.size() < anchor) anchors_.resize(anchor);
    anchors_[anchor - 1] = {node, span};
  }

  void Add(size_t offset, Span span, std::string message, std::string hint = {}) {
    problems_.push_back({offset, span, std::move(message), std::move(hint), {}, {}});
  }

  YamlText text_;
  NodeStore& store_;
  const Node* root_ = nullptr;
  bool has_document_ = false;
  size_t last_ = 0;  // offset of the last event
  std::vector<Level> open_;
  std::vector<Anchor> anchors_;
  std::vector<Problem> problems_;
};

// yaml-cpp keeps the tokens of a whole line, about 100 bytes each, until it knows that none of them
// is a key.
constexpr size_t kLongestLine = 64 << 10;

// Returns whether the text begins with a bracket, an anchor or a tag, ignoring comments and marks.
// The whole text may then be one `{…}` or `[…]`. This could itself be a key, so yaml-cpp would keep
// all its tokens.
bool IsOneBracket(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const size_t first = line.find_first_not_of(" \t\r-");
    if (first != line.npos && line[first] != '#' && line[first] != '%') {
      return std::string_view("[{&!").find(line[first]) != line.npos;
    }
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return false;
}

// Returns the number of the first long line, or 0.
uint32_t FirstLongLine(std::string_view text) {
  uint32_t line = 1;
  for (size_t start = 0; start < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', start), text.size());
    if (end - start > kLongestLine) return line;
    start = end + 1;
  }
  return 0;
}

}  // namespace

const Node::Entry* Node::FindEntry(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key != nullptr && entry.key->text == key) return &entry;
  }
  return nullptr;
}

std::string Describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kSequence:
      return "a list";
    case Node::Kind::kMap:
      return "a mapping";
    case Node::Kind::kScalar:
      break;
  }
  return Quote(node.text);
}

Span SpanIn(const Source& source, size_t offset, size_t length) {
  const std::string_view before = std::string_view(source.text).substr(0, offset);
  const size_t line = std::ranges::count(before, '\n') + 1;
  const size_t column = offset - (before.rfind('\n') + 1) + 1;
  return {&source, static_cast<uint32_t>(line), static_cast<uint32_t>(column),
          static_cast<uint32_t>(std::max<size_t>(length, 1))};
}

const Node* ParseYaml(const Source& source, size_t begin, NodeStore& store,
                      Diagnostics& diagnostics) {
  const std::string_view text = source.text;
  const bool utf16 = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") ||
                     (text.size() > 1 && (text[0] == '\0') != (text[1] == '\0'));
  if (utf16) {
    return diagnostics.Error({&source, 0, 0, 0}, "the file is not UTF-8 but UTF-16 or UTF-32",
                             "save it as UTF-8");
  }
  if (const std::optional<BadText> bad = FindBadText(text)) {
    return diagnostics.Error(SpanIn(source, bad->offset, 1), bad->what,
                             "a spec is plain UTF-8 text");
  }
  if (const uint32_t line = FirstLongLine(source.text)) {
    return diagnostics.Error({&source, line, 1, 1},
                             fmt::format("this line has more than {} bytes", kLongestLine),
                             "write it as several lines");
  }
  if (source.text.size() > kLongestLine && IsOneBracket(source.text)) {
    return diagnostics.Error(
        {&source, 0, 0, 0},
        fmt::format("more than {} bytes are in one pair of brackets", kLongestLine),
        "write the outermost mapping without braces, one key per line");
  }
  ViewBuffer buffer(std::string_view(source.text).substr(begin));
  std::istream stream(&buffer);
  Builder builder(source, begin, store);
  bool finished = false;
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) continue;
    finished = true;
  } catch (const YAML::ParserException& error) {
    builder.Fail(error);
  } catch (const Stop&) {
    // The reason is among the problems.
  }
  builder.Report(diagnostics);
  if (!finished) return nullptr;
  if (builder.root() != nullptr) return builder.root();
  return store.New(Node::Kind::kNull, {&source, 0, 0, 0});
}

std::shared_ptr<const NodeTree> CopyTree(const Node& root) {
  const auto tree = std::make_shared<NodeTree>();
  const auto copy = [&](const Node& node, const auto& self) -> const Node* {
    Node* made = tree->store.Copy(node);
    made->text = tree->store.Keep(std::string(node.text));
    for (Node::Entry& entry : made->entries) {
      if (entry.key != nullptr) entry.key = self(*entry.key, self);
      entry.value = self(*entry.value, self);
    }
    return made;
  };
  tree->root = copy(root, copy);
  return tree;
}

}  // namespace shardinit
