#include <gtest/gtest.h>

#include "report/facts.h"

namespace shardinit {
namespace {

TEST(Facts, FactsAreJsonMembersAndTextRows) {
  const Facts facts = {{"name", "x", {.label = "name"}},
                       {"elements", 12345, {.label = "elements"}},
                       {"boxes", uint64_t{2}},
                       {"whole", true, {.label = "whole", .text = "as it is"}},
                       {"shape", std::vector<int64_t>{3, 4}, {.label = "shape"}},
                       {"", nullptr, {.text = "for people"}}};
  EXPECT_EQ(FactsInJson(facts),
            "{\n \"name\": \"x\",\n \"elements\": 12345,\n \"boxes\": 2,\n \"whole\": true,\n"
            " \"shape\": [3, 4]\n}\n");
  EXPECT_EQ(FactsInText(facts),
            "name      x\nelements  12,345\nwhole     as it is\nshape     [3, 4]\n"
            "          for people\n");
}

TEST(Facts, FactsHaveTheirPositionInJsonAndText) {
  const Source source = {"spec.yaml", "seed: 7\n"};
  const Span span = {&source, 1, 7, 1};
  const Facts facts = {
      At({"seed", 7, {.label = "seed"}}, span), At({"engine", "e", {.label = "engine"}}, {}),
      At({"dtype", "f32", {.label = "dtype"}}, {}, ""),
      At({"rule", Facts{{"dimension", 0}}, {.label = "rule", .text = "of dimension 0"}}, span)};
  EXPECT_EQ(FactsInJson(facts),
            "{\n \"seed\": {\"value\": 7, \"place\": \"spec.yaml:1:7\"},\n"
            " \"engine\": {\"value\": \"e\", \"place\": null},\n"
            " \"dtype\": {\"value\": \"f32\", \"place\": null},\n"
            " \"rule\": {\"dimension\": 0, \"place\": \"spec.yaml:1:7\"}\n}\n");
  EXPECT_EQ(FactsInText(facts),
            "seed    7               spec.yaml:1:7\nengine  e               (default)\n"
            "dtype   f32\nrule    of dimension 0  spec.yaml:1:7\n");
}

TEST(Facts, ListsHaveARowForEachItem) {
  const Facts facts = {{"axes", FactList{{{"", "a"}, {"", "b"}}}},
                       {"none", FactList{}},
                       {"steps",
                        FactList{{{"", Facts{{"n", 1}}, {.label = "step", .text = "1"}},
                                  {"", Facts{{"n", 2}}, {.text = "2"}}}},
                        {}}};
  EXPECT_EQ(FactsInJson(facts),
            "{\n \"axes\": [\"a\", \"b\"],\n \"none\": [],\n"
            " \"steps\": [\n  {\"n\": 1},\n  {\"n\": 2}\n ]\n}\n");
  EXPECT_EQ(FactsInText(facts), "step  1\n      2\n");
}

TEST(Facts, TextGroupsFactsBySection) {
  const Facts facts = {{"last", 1, {.label = "last", .section = 2}},
                       {"a", 2, {.label = "a"}},
                       {"b", 3, {.label = "b"}}};
  EXPECT_EQ(FactsInJson(facts), "{\n \"last\": 1,\n \"a\": 2,\n \"b\": 3\n}\n");
  EXPECT_EQ(FactsInText(facts), "a     2\nb     3\nlast  1\n");
}

TEST(Facts, TablesAreBelowTheRows) {
  const FactTable table = {2,
                           {"path", "partition", "global shape", "n"},
                           [](size_t row) -> Facts {
                             Facts facts = {{"path", row == 0 ? "a.long" : "b"},
                                            {"", "[-]"},
                                            {"global_shape", std::vector<int64_t>{row == 1}},
                                            {"n", row + 9, {.text = row == 0 ? "nine" : ""}}};
                             if (row == 0) facts.push_back({"file", "f"});
                             return facts;
                           },
                           {false, false, false, true}};
  const Facts facts = {{"boxes", table, {.text = "all of them:"}}, {"n", 1, {.label = "n"}}};
  EXPECT_EQ(FactsInJson(facts),
            "{\n \"boxes\": [\n"
            "  {\"path\": \"a.long\", \"global_shape\": [0], \"n\": 9, \"file\": \"f\"},\n"
            "  {\"path\": \"b\", \"global_shape\": [1], \"n\": 10}\n ],\n \"n\": 1\n}\n");
  EXPECT_EQ(FactsInText(facts),
            "n  1\n\nall of them:\n\npath    partition  global shape     n\n"
            "a.long  [-]        [0]           nine\nb       [-]        [1]             10\n");
}

}  // namespace
}  // namespace shardinit
