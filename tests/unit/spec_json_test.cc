#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "spec/json.h"
#include "spec/write.h"

namespace shardinit {
namespace {

nlohmann::json ToJson(const Node& node) {
  if (node.IsNull()) return nullptr;
  if (node.IsScalar())
    return node.quoted ? nlohmann::json(node.text) : nlohmann::json::parse(node.text);
  nlohmann::json out = node.IsMap() ? nlohmann::json::object() : nlohmann::json::array();
  for (const Node::Entry& entry : node.entries) {
    node.IsMap() ? void(out[std::string(entry.key->text)] = ToJson(*entry.value))
                 : out.push_back(ToJson(*entry.value));
  }
  return out;
}

std::string Mistake(const std::string& text) {
  Diagnostics diagnostics;
  NodeStore store;
  const Node* root = ParseJsonTree(*diagnostics.Add({"x", text}), store, diagnostics);
  EXPECT_EQ(root == nullptr, diagnostics.HasErrors());
  if (root != nullptr) return {};
  const Diagnostic& first = diagnostics.all()[0];
  return PlaceOf(first.span) + ": " + first.message;
}

constexpr const char* kValid[] = {
    "{}",
    " [ ] ",
    "null",
    "-0.5e+3",
    R"({"a": [1, -2, 3.5, 1e-05, true, false, null], "b": {"c": {}, "": ""}})",
    R"(["\"\\\/\b\f\n\r\t", "\u0041\u00e9\u20ac\ud83d\ude00", "é€😀", "a: b # c", "= x", "'", "-"])",
    "[\n\t[[[1]]],\r\n 2]",
};

TEST(ParseJsonTree, JsonTreeEqualsAnotherParsers) {
  for (const std::string text : kValid) {
    Diagnostics diagnostics;
    NodeStore store;
    const Node* root = ParseJsonTree(*diagnostics.Add({"x", text}), store, diagnostics);
    ASSERT_NE(root, nullptr) << text;
    EXPECT_EQ(ToJson(*root), nlohmann::json::parse(text)) << text;
  }
}

TEST(ParseJsonTree, ParsesAnyValueOnOneLine) {
  std::string text = "{\"a\": [0";
  for (int i = 1; i < 50000; ++i) text += "," + std::to_string(i);
  EXPECT_EQ(Mistake(text + "]}"), "");
}

TEST(ParseJsonTree, ReportsThePositionOfInvalidJson) {
  EXPECT_EQ(Mistake(""), "x:1:1: the text ends where a value is expected");
  EXPECT_EQ(Mistake("{\n  \"a\": 1\n  \"b\": 2}"), "x:3:3: a comma is missing before this");
  EXPECT_EQ(Mistake("{\"a\": 1,}"), "x:1:9: a value is expected after the comma");
  EXPECT_EQ(Mistake("{\"a\" 1}"), "x:1:6: a colon is expected after the key");
  EXPECT_EQ(Mistake("{a: 1}"), "x:1:2: a key in double quotes is due here");
  EXPECT_EQ(Mistake("[1, \"a]"), "x:1:5: this quote is never closed");
  EXPECT_EQ(Mistake("[1, {]"), "x:1:6: a key in double quotes is due here");
  EXPECT_EQ(Mistake("[01]"), "x:1:2: `01` is not a JSON value");
  EXPECT_EQ(Mistake("[+1]"), "x:1:2: `+1` is not a JSON value");
  EXPECT_EQ(Mistake("[1.]"), "x:1:2: `1.` is not a JSON value");
  EXPECT_EQ(Mistake("[True]"), "x:1:2: `True` is not a JSON value");
  EXPECT_EQ(Mistake("[\"\\x\"]"), "x:1:3: JSON has no such escape");
  EXPECT_EQ(Mistake("[\"\\u12g4\"]"), "x:1:3: four hexadecimal digits are expected after `\\u`");
  EXPECT_EQ(Mistake("{\"a\": 1, \"a\": 2}"), "x:1:10: key `a` is given twice");
  EXPECT_EQ(Mistake("1 2"), "x:1:3: this follows the end of the JSON value");
  EXPECT_EQ(Mistake(std::string(100, '[')), "x:1:65: nested more than 64 levels deep");
}

// A tree that is read as JSON and written as YAML stays the same.
TEST(WriteYaml, WrittenYamlReadsBackUnchanged) {
  const std::string text =
      R"({"a": ["1", "true", "x", "y: z", "#", "- a", "", " b ", "\u0007\u202e\n\"\\", "{c}", "~"],)"
      R"( "b c": {"d": null, "e": [], "f": {}, "10": 1e-05, "long": ")" +
      std::string(120, 'x') + R"("}, "no": false, "list": ["é", ")" + std::string(120, 'y') +
      R"("], "of lists": [[1, [2, {"k": "v"}]], ")" + std::string(100, 'z') + R"("]})";
  Diagnostics diagnostics;
  NodeStore store;
  const Node* root = ParseJsonTree(*diagnostics.Add({"x", text}), store, diagnostics);
  ASSERT_NE(root, nullptr);
  const Source* yaml = diagnostics.Add({"y", WriteYaml(*root)});
  const Node* back = ParseYaml(*yaml, 0, store, diagnostics);
  ASSERT_FALSE(diagnostics.HasErrors()) << Render(diagnostics.all()) << yaml->text;
  // Only words that are text even without quotes are written without quotes.
  const auto expect_same = [&](const Node& a, const Node& b, const auto& self) -> void {
    EXPECT_EQ(a.kind, b.kind) << a.text;
    EXPECT_EQ(a.text, b.text);
    EXPECT_TRUE(a.quoted == b.quoted || a.text != "true");
    ASSERT_EQ(a.entries.size(), b.entries.size()) << yaml->text;
    for (size_t i = 0; i < a.entries.size(); ++i) {
      if (a.IsMap()) {
        EXPECT_EQ(a.entries[i].key->text, b.entries[i].key->text);
      }
      self(*a.entries[i].value, *b.entries[i].value, self);
    }
  };
  expect_same(*root, *back, expect_same);
}

}  // namespace
}  // namespace shardinit
