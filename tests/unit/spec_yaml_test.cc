#include <gtest/gtest.h>

#include <ctime>

#include "spec/yaml.h"

namespace shardinit {
namespace {

// Returns the tree in flow style, with quoted scalars in single quotes, or the errors.
std::string Print(const Node& node) {
  if (node.IsNull()) return "null";
  if (node.IsScalar()) {
    return node.quoted ? "'" + std::string(node.text) + "'" : std::string(node.text);
  }
  std::string out;
  for (const Node::Entry& entry : node.entries) {
    out += out.empty() ? "" : ", ";
    if (entry.key != nullptr) out += Print(*entry.key) + ": ";
    out += Print(*entry.value);
  }
  return node.IsMap() ? "{" + out + "}" : "[" + out + "]";
}

std::string Parse(const std::string& text) {
  Diagnostics diagnostics;
  NodeStore store;
  const Source* source = diagnostics.Add({"x", text});
  try {
    const Node* root = ParseYaml(*source, 0, store, diagnostics);
    if (!diagnostics.HasErrors()) return Print(*root);
  } catch (const InvalidSpec&) {
    // There were too many errors; they are still in `diagnostics`.
  }
  return Render(diagnostics.all());
}

TEST(ParseYaml, KeepsScalarsAsText) {
  EXPECT_EQ(Parse("a: 017\nb: yes\nc: '5'\nd: \"x\\ty\"\ne: 2 * d # note\n"),
            "{a: 017, b: yes, c: '5', d: 'x\ty', e: 2 * d}");
  EXPECT_EQ(Parse("a:\nb: ~\nc: null\nd: []\ne: {}\nf: [,1]\n"),
            "{a: null, b: null, c: null, d: [], e: {}, f: [null, 1]}");
  EXPECT_EQ(Parse("a: |\n  x\n  y\nb: 'it''s'\n"), "{a: 'x\ny\n', b: 'it's'}");
  EXPECT_EQ(Parse("a: !!str 5\nb: !!int 5\nc: !!map {d: !!seq [1]}\n"),
            "{a: '5', b: 5, c: {d: [1]}}");
  EXPECT_EQ(Parse(""), "null");
  EXPECT_EQ(Parse("# nothing\n"), "null");
  EXPECT_EQ(Parse("--- {a: 1}\n...\n"), "{a: 1}");
}

TEST(ParseYaml, SharesAliases) {
  EXPECT_EQ(Parse("a: &x {b: [1, 2]}\nc: *x\nd: [*x, *x]\n"),
            "{a: {b: [1, 2]}, c: {b: [1, 2]}, d: [{b: [1, 2]}, {b: [1, 2]}]}");
}

TEST(ParseYaml, SpansCoverTheSourceText) {
  Diagnostics diagnostics;
  NodeStore store;
  const Source* source =
      diagnostics.Add({"x", "a: &n !!str 5\r\né: [1, {b: 'c d'}]\r\nl: | \r\n  x\r\nn:\r\n"});
  const Node* root = ParseYaml(*source, 0, store, diagnostics);
  ASSERT_EQ(Render(diagnostics.all()), "");
  const auto where = [](const Node& node) {
    return std::to_string(node.span.line) + ":" + std::to_string(node.span.column) + "+" +
           std::to_string(node.span.length);
  };
  EXPECT_EQ(where(*root->entries[0].value), "1:13+1");
  EXPECT_EQ(where(*root->entries[1].key), "2:1+2");
  const Node& list = *root->entries[1].value;
  EXPECT_EQ(where(list), "2:5+15");
  EXPECT_EQ(where(*list.entries[0].value), "2:6+1");
  EXPECT_EQ(where(*list.entries[1].value), "2:9+10");
  EXPECT_EQ(where(*list.entries[1].value->entries[0].value), "2:13+5");
  EXPECT_EQ(where(*root->entries[3].value), "5:1+1");  // An empty value has the key's place.
}

struct Case {
  std::string text, expected;
};

TEST(ParseYaml, RejectsUnsupportedYaml) {
  const Case cases[] = {
      {"a: 1\nb: 2\na: 3\n",
       "x:3:1: error: key `a` is given twice\n  a: 3\n  ^\n"
       "  hint: remove one of them\n"
       "x:1:1: note: first here\n  a: 1\n  ^\n"},
      {"a: &b {c: *b}\n",
       "x:1:11: error: this alias is inside the value that it names\n"
       "  a: &b {c: *b}\n            ^^\n"
       "x:1:7: note: the value starts here\n"
       "  a: &b {c: *b}\n        ^^^^^^^\n"},
      {"a: &b {c: 1}\nd: {<<: *b}\n",
       "x:2:5: error: merge keys are not supported\n"
       "  d: {<<: *b}\n      ^^\n"
       "  hint: use `include`, or repeat the keys\n"},
      {"a: 1\n---\nb: 2\n",
       "x:2:1: error: a second YAML document starts here\n  ---\n  ^^^\n"
       "  hint: a spec is one document; split the file\n"},
      {"  a: 1\nb: 2\n",
       "x:2:1: error: this does not belong to the mapping or list above it\n"
       "  b: 2\n  ^^^^\n  hint: check the indentation\n"},
      {"a: b\n  c\nd: e\n",
       "x:1:4: error: this text continues on the next line\n  a: b\n     ^\n"
       "  hint: check the indentation of the next line, or put the text in "
       "quotes\n"},
      {"a: !foo 1\nb: !!python/name:os.system x\n",
       "x:1:4: error: YAML tags are not allowed in a spec\n"
       "  a: !foo 1\n     ^^^^\n  hint: remove the tag\n"
       "x:2:4: error: YAML tags are not allowed in a spec\n"
       "  b: !!python/name:os.system x\n     ^^^^^^^^^^^^^^^^^^^^^^^\n"
       "  hint: remove the tag\n"},
      {"? [a]\n: b\n", "x:1:3: error: a key must be a name, not a list\n  ? [a]\n    ^^^\n"},
      {"a: &b c\n*b : 1\n",
       "x:2:1: error: a key cannot be an alias\n  *b : 1\n  ^^\n"
       "  hint: write the name\n"},
      {"{: 1}\n",
       "x:1:2: error: a key is missing here\n  {: 1}\n   ^\n"
       "  hint: a key that is called null needs quotes\n"},
  };
  for (const Case& c : cases) EXPECT_EQ(Parse(c.text), c.expected);
}

TEST(ParseYaml, ExplainsSyntaxErrors) {
  const Case cases[] = {
      {"a: [1, 2\nb: 3\n",
       "x:1:4: error: `[` is never closed\n  a: [1, 2\n     ^\n"
       "  hint: a `]` or a comma is missing at or before line 2\n"},
      {"a: {b: 1\nc: 2\n",
       "x:1:4: error: `{` is never closed\n  a: {b: 1\n     ^\n"
       "  hint: a `}` or a comma is missing at or before line 2\n"},
      {"'", "x:1:1: error: this quote is never closed\n  '\n  ^\n"},
      {"a: \"x\n", "x:1:4: error: this quote is never closed\n  a: \"x\n     ^\n"},
      {"a: it's\nb: \"x", "x:2:4: error: this quote is never closed\n  b: \"x\n     ^\n"},
      {"a:\n\tb: c\n",
       "x:2:1: error: a tab cannot indent YAML\n  \tb: c\n  ^\n"
       "  hint: use spaces\n"},
      {"a: 1\n b: 2\n",
       "x:2:3: error: a `:` is not allowed here\n   b: 2\n    ^\n"
       "  hint: indent the key like its neighbours; text that contains `: ` needs "
       "quotes\n"},
      {"a: *b\n",
       "x:1:4: error: this alias names nothing above it\n  a: *b\n     ^^\n"
       "  hint: text that starts with `*` needs quotes\n"},
      {"a: @b\n",
       "x:1:4: error: text cannot start with `@`\n  a: @b\n     ^\n"
       "  hint: put it in quotes\n"},
      {"a: [1, {b: 2]\n",
       "x:1:13: error: `]` cannot close `{`\n"
       "  a: [1, {b: 2]\n              ^\n"
       "x:1:8: note: opened here\n"
       "  a: [1, {b: 2]\n         ^\n"},
      {"a: ]\n", "x:1:4: error: `]` closes nothing\n  a: ]\n     ^\n"},
      {"a: 'b' c\n",
       "x:1:8: error: this does not belong to the text before it\n"
       "  a: 'b' c\n         ^\n"
       "  hint: check the indentation; text after a closing quote or bracket "
       "needs its own line\n"},
      {"a: - b\n",
       "x:1:4: error: a list item cannot start here\n  a: - b\n     ^\n"
       "  hint: put it on its own line, or write the list as `[a, b]`\n"},
      {"a: \"\\q\"\n",
       "x:1:7: error: unknown escape in a double-quoted string\n"
       "  a: \"\\q\"\n        ^\n"
       "  hint: in single quotes `\\` is an ordinary character\n"},
      {"%YAML 2.0\n---\na: 1\n",
       "x:1:1: error: YAML directives are not allowed in a spec\n"
       "  %YAML 2.0\n  ^^^^^^^^^\n  hint: remove the line\n"},
  };
  for (const Case& c : cases) EXPECT_EQ(Parse(c.text), c.expected);
}

TEST(ParseYaml, RejectsInvalidText) {
  EXPECT_EQ(Parse("a: \xff\n"),
            "x:1:4: error: invalid UTF-8 (byte 0xff)\n  a: \\xff\n     ^^^^\n"
            "  hint: a spec is plain UTF-8 text\n");
  EXPECT_EQ(Parse("a: 1\nb: \u202ex\n"),
            "x:2:4: error: invisible character U+202E\n"
            "  b: \\u202ex\n     ^^^^^^\n"
            "  hint: a spec is plain UTF-8 text\n");
  const std::string utf16 =
      "x: error: the file is not UTF-8 but UTF-16 or UTF-32\n"
      "  hint: save it as UTF-8\n";
  EXPECT_EQ(Parse("\xff\xfe"
                  "a"),
            utf16);
  EXPECT_EQ(Parse(std::string("a\0:\0", 4)), utf16);
}

std::string Repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// Texts that nest more deeply, or expand to more, than any machine could walk are refused at once.
TEST(ParseYaml, RejectsYamlBombsAtOnce) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  std::string chain = "a0: &a0 [x]\n";
  for (int i = 1; i < 100; ++i) {
    const std::string name = "a" + std::to_string(i);
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += name + ": &" + name + " [" + last + Repeat(", " + last, 8) + "]\n";
    chain += name + ": &" + name + " [" + last + "]\n";
  }
  const Case cases[] = {
      {bomb, "aliases expand to more than 1000000 values"},
      {chain, "aliases nest more than 64 levels deep"},
      {Repeat("[", 60000), "nested more than 64 levels deep"},
      {Repeat("{a: ", 10000), "nested more than 64 levels deep"},
      {Repeat("- ", 30000), "nested more than 64 levels deep"},
      {Repeat("? ", 30000), "nested more than 64 levels deep"},
      {"[" + Repeat("x,", 40000) + "]", "this line has more than 65536 bytes"},
      {"# c\n--- [" + Repeat("x,\n", 40000) + "]",
       "more than 65536 bytes are in one pair of brackets"},
      {"a: [" + Repeat("x,\n", 1100000) + "]", "the spec has more than 1000000 values"},
      {Repeat("k", 2000) + ": 1", "a key must end within 1024 bytes"},
  };
  const std::clock_t start = std::clock();  // CPU time of this process: others may be busy.
  for (const Case& c : cases) {
    const std::string message = Parse(c.text);
    EXPECT_NE(message.find("error: " + c.expected + "\n"), std::string::npos) << message;
    EXPECT_LT(message.size(), 1000u);
  }
  EXPECT_LT(std::clock() - start, 30 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace shardinit
