#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace shardinit {
namespace {

std::string Refusal(const std::string& text) {
  try {
    ParseJson(text, "x.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kRefused);
    return error.what();
  }
  return "";
}

TEST(JsonWriter, PutsInlineMembersOnOneLine) {
  JsonWriter out;
  out.BeginObject().Member("a", 1).Member("b", "x").Member("c", nullptr);
  out.Member("d", std::vector<int64_t>{1, -2, 3}).Member("e", true);
  out.Key("f").BeginArray().EndArray().Key("g").BeginObject().EndObject();
  out.EndObject();
  EXPECT_EQ(out.Finish(),
            "{\"a\": 1, \"b\": \"x\", \"c\": null, \"d\": [1, -2, 3], \"e\": "
            "true, \"f\": [], \"g\": {}}\n");
}

TEST(JsonWriter, PutsLinesMembersOnTheirOwnLines) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Member("a", 1);
  out.Key("list").BeginArray(JsonWriter::kLines);
  out.BeginObject().Member("x", 1).Member("y", 2).EndObject();
  out.BeginObject().Member("x", 3).EndObject();
  out.EndArray().Key("none").BeginArray(JsonWriter::kLines).EndArray();
  out.EndObject();
  EXPECT_EQ(out.Finish(),
            "{\n"
            " \"a\": 1,\n"
            " \"list\": [\n"
            "  {\"x\": 1, \"y\": 2},\n"
            "  {\"x\": 3}\n"
            " ],\n"
            " \"none\": []\n"
            "}\n");
}

TEST(JsonWriter, EscapesLikeRfc8785) {
  JsonWriter out;
  out.Value(std::string_view("\"\\/\b\f\n\r\t\0\x1f\x7f\xc3\xa9", 13));
  EXPECT_EQ(out.Finish(), "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\xc3\xa9\"\n");
}

TEST(JsonWriter, WritesUtf8ForAnyBytes) {
  JsonWriter out;
  out.Value("\xc3\xa9\x80\xff\xe2\x82|\xed\xa0\x80|\xf0\x9f\x98\x80");
  const std::string text = out.Finish();
  EXPECT_EQ(text,
            "\"\xc3\xa9\\\\x80\\\\xff\\\\xe2\\\\x82|\\\\xed\\\\xa0\\\\x80|\xf0\x9f\x98\x80\"\n");
  EXPECT_TRUE(nlohmann::json::accept(text));
}

TEST(JsonWriter, EscapesKeys) {
  JsonWriter out;
  out.BeginObject().Member("a\"\n", 1).EndObject();
  EXPECT_EQ(out.Finish(), "{\"a\\\"\\n\": 1}\n");
}

TEST(JsonWriter, WritesTheLimitsOfIntegers) {
  JsonWriter out;
  out.BeginArray().Value(std::numeric_limits<int64_t>::min());
  out.Value(std::numeric_limits<int64_t>::max()).EndArray();
  EXPECT_EQ(out.Finish(), "[-9223372036854775808, 9223372036854775807]\n");
}

TEST(JsonWriter, DoublesSurviveARoundTrip) {
  for (const double value :
       {0.0, -0.0, 1.0, 0.02, 0.1 + 0.2, 1e-5, 8.3e-25, 0x1p-80, 0x1p100, 1e16, 1e17,
        9007199254740993.0, 123456789012345680.0, -2.5, std::numeric_limits<double>::denorm_min(),
        std::numeric_limits<double>::max()}) {
    JsonWriter out;
    out.Value(value);
    const std::string text = out.Finish();
    const double back = ParseJson(text, "x").get<double>();
    EXPECT_EQ(std::signbit(back), std::signbit(value)) << text;
    EXPECT_EQ(back, value) << text;
  }
}

TEST(JsonWriter, WritesTheShortestDecimal) {
  JsonWriter out;
  out.BeginArray().Value(0.02).Value(1.0).Value(1e-5).Value(0.1 + 0.2);
  out.EndArray();
  EXPECT_EQ(out.Finish(), "[0.02, 1, 1e-05, 0.30000000000000004]\n");
}

TEST(JsonWriter, WriterRejectsNonfiniteNumbers) {
  JsonWriter out;
  EXPECT_THROW(out.Value(std::numeric_limits<double>::quiet_NaN()), Bug);
  EXPECT_THROW(out.Value(std::numeric_limits<double>::infinity()), Bug);
  EXPECT_THROW(out.Value(-std::numeric_limits<double>::infinity()), Bug);
}

TEST(JsonWriter, WriterRejectsAMissingEnd) {
  JsonWriter out;
  out.BeginObject();
  EXPECT_THROW(out.Finish(), Bug);
}

TEST(JsonWriter, WriterReturnsTheTextInPieces) {
  JsonWriter out;
  out.BeginArray(JsonWriter::kLines).Value(1);
  EXPECT_EQ(out.size(), 4u);
  std::string text = out.Take();
  EXPECT_EQ(out.size(), 0u);
  text += out.Value(2).EndArray().Finish();
  EXPECT_EQ(text, "[\n 1,\n 2\n]\n");
}

TEST(ParseJson, ParsesValidJson) {
  const nlohmann::json in = ParseJson(R"({"a": [1, {"a": 2}], "b": {"a": 3}})", "x");
  EXPECT_EQ(in.at("a").at(1).at("a"), 2);
  EXPECT_EQ(in.at("b").at("a"), 3);
}

TEST(ParseJson, RejectsDuplicateKeys) {
  EXPECT_EQ(Refusal(R"({"a": 1, "b": 2, "a": 3})"), "`x.json` has the key \"a\" twice");
  EXPECT_EQ(Refusal(R"([{"x": {"b": 1, "b": 2}}])"), "`x.json` has the key \"b\" twice");
  EXPECT_EQ(Refusal(R"({"a": 1, "\u0061": 3})"), "`x.json` has the key \"a\" twice");
}

TEST(ParseJson, RejectsDeepNesting) {
  const auto nested = [](int levels) {
    return std::string(static_cast<size_t>(levels), '[') +
           std::string(static_cast<size_t>(levels), ']');
  };
  EXPECT_EQ(Refusal(nested(32)), "");
  EXPECT_EQ(Refusal(nested(34)), "`x.json` is nested over 32 levels");
  // Much deeper than a recursive parser's stack allows.
  EXPECT_EQ(Refusal(std::string(1'000'000, '[')), "`x.json` is nested over 32 levels");
}

TEST(ParseJson, RejectsInvalidJson) {
  EXPECT_EQ(Refusal(""), "`x.json` is not valid JSON: it ends at byte 0");
  EXPECT_EQ(Refusal("{\"a\": }"), "`x.json` is not valid JSON (byte 7 of 7)");
  EXPECT_EQ(Refusal("[1] x"), "`x.json` is not valid JSON (byte 5 of 5)");
  EXPECT_EQ(Refusal("[1"), "`x.json` is not valid JSON: it ends at byte 2");
  EXPECT_NE(Refusal("[NaN]"), "");
  EXPECT_NE(Refusal("[1e999]"), "");
  EXPECT_NE(Refusal("[1,]"), "");
  EXPECT_NE(Refusal("// c\n[1]"), "");
  EXPECT_NE(Refusal("\"\xff\""), "");
}

// Returns the text read as a T, or no value if it is refused.
template <typename T>
std::optional<T> NumberIn(const std::string& text) try {
  return ParseJson(text, "x.json").at("n").get<T>();
} catch (const nlohmann::json::exception& e) {
  EXPECT_NE(std::string(e.what()).find("a whole number from "), std::string::npos) << e.what();
  return {};
}

TEST(ParseJson, RejectsFractionsAndNumbersOutOfRange) {
  EXPECT_EQ(NumberIn<int64_t>(R"({"n": 5})"), 5);
  EXPECT_EQ(NumberIn<int64_t>(R"({"n": -9223372036854775808})"),
            std::numeric_limits<int64_t>::min());
  EXPECT_EQ(NumberIn<int64_t>(R"({"n": 9223372036854775807})"),
            std::numeric_limits<int64_t>::max());
  EXPECT_EQ(NumberIn<uint64_t>(R"({"n": 18446744073709551615})"),
            std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(NumberIn<int>(R"({"n": -2147483648})"), std::numeric_limits<int>::min());
  EXPECT_EQ(NumberIn<int>(R"({"n": 2147483648})"), std::nullopt);
  EXPECT_EQ(NumberIn<uint64_t>(R"({"n": -1})"), std::nullopt);
  for (const char* number : {"9223372036854775808", "18446744073709551615", "18446744073709551616",
                             "99999999999999999999999", "-9223372036854775809", "1e300", "1.5",
                             "5.0", "true", "\"5\"", "null", "[5]", "{}"}) {
    EXPECT_EQ(NumberIn<int64_t>(fmt::format(R"({{"n": {}}})", number)), std::nullopt) << number;
  }
  const nlohmann::json list = ParseJson(R"([1, 2, 9223372036854775808])", "x.json");
  EXPECT_THROW(list.get<std::vector<int64_t>>(), nlohmann::json::exception);
  EXPECT_THROW(const int64_t implicit = list[2]; (void)implicit, nlohmann::json::exception);
  // Fractions accept integers, and written numbers read back unchanged.
  EXPECT_EQ(ParseJson("[5]", "x.json")[0].get<double>(), 5);
  EXPECT_EQ(nlohmann::json(int64_t{-7}).dump() + nlohmann::json(size_t{7}).dump(), "-77");
}

}  // namespace
}  // namespace shardinit
