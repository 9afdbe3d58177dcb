// Tests that words and texts are quoted for a shell, YAML and JSON.
#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "commands/job_text.h"

namespace shardinit {
namespace {

TEST(InShell, ShellTextIsQuotedUnlessPlain) {
  for (int c = 1; c < 256; ++c) {
    const std::string text(1, static_cast<char>(c));
    const bool is_plain =
        c < 128 && (std::isalnum(c) != 0 ||
                    std::string_view("_@%+=:,./-").find(text) != std::string_view::npos);
    const std::string quoted = c == '\'' ? "''\\'''" : "'" + text + "'";
    EXPECT_EQ(InShell(text), is_plain ? text : quoted) << c;
    EXPECT_EQ(InShell("a" + text + "b"), is_plain    ? "a" + text + "b"
                                         : c == '\'' ? "'a'\\''b'"
                                                     : "'a" + text + "b'")
        << c;
  }
  EXPECT_EQ(InShell(""), "''");
  EXPECT_EQ(InShell(std::vector<std::string>{"a", "", "b c"}), "a '' 'b c'");
}

TEST(InYaml, YamlScalarsKeepEveryCharacter) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"a \"b\\\n", "a \\\"b\\\\\\n"},
      {"\t\r\x01\x1f ~\x7f", "\\x09\\x0d\\x01\\x1f ~\\x7f"},
      {"\xc2\x80\xc2\x85\xc2\x9f\xc2\xa1\xc3\xbf\xc4\x80",
       "\\x80\\x85\\x9f\xc2\xa1\xc3\xbf\xc4\x80"},
      {"\xe2\x80\xa7\xe2\x80\xa8\xe2\x80\xa9", "\xe2\x80\xa7\\u2028\\u2029"},
      {"\xef\xbf\xbd\xef\xbf\xbe\xef\xbf\xbf", "\xef\xbf\xbd\\ufffe\\uffff"},
      {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
      {"\xf3\xa0\x80\x81", "\\U000e0001"},
  };
  for (const auto& [text, quoted] : cases)
    EXPECT_EQ(InYamlScalar(text), "\"" + std::string(quoted) + "\"");
}

TEST(InYaml, YamlBlocksAreForPlainLines) {
  EXPECT_EQ(InYamlBlock("a\n"), "|\n  a");
  EXPECT_EQ(InYamlBlock("a: \"b\"\n\n  c\n"), "|\n  a: \"b\"\n  \n    c");
  for (const char* text : {"a", "a\n\n", " a\n", "\na\n", "a\tb\n", "a\n\xe2\x80\xa8\n", "\n"}) {
    EXPECT_EQ(InYamlBlock(text), InYamlScalar(text));
  }
}

TEST(InJson, JsonTextHasStringsAndLists) {
  EXPECT_EQ(InJsonText("a\"\n"), "\"a\\\"\\n\"");
  const std::string list = InJsonText(std::vector<std::string>{"a", "b"});
  EXPECT_LT(list.find("\"a\""), list.find("\"b\""));
}

TEST(TextOfJobs, JobTextMustBeUtf8) {
  for (const char* wrong : {"\xff", "a\xc3", "ok\xed\xa0\x80"}) {
    EXPECT_THROW(InYamlScalar(wrong), Error) << wrong;
    EXPECT_THROW(InYamlBlock(std::string(wrong) + "\n"), Error) << wrong;
    EXPECT_THROW(InJsonText(wrong), Error) << wrong;
    EXPECT_THROW(InJsonText(std::vector<std::string>{"a", wrong}), Error) << wrong;
  }
}

}  // namespace
}  // namespace shardinit
