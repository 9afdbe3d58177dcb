// Tests that mistakes of all kinds get one message each in one run: their consequences get none.
#include <gtest/gtest.h>

#include "support/graph_text.h"

namespace shardinit {
namespace {

int CountErrors(const std::string& messages) {
  constexpr std::string_view kError = ": error: ";
  int count = 0;
  for (size_t at = 0; (at = messages.find(kError, at)) != messages.npos; at += kError.size())
    ++count;
  return count;
}

// A valid spec, in which one line is replaced. All its parts depend on each other.
struct Line {
  std::string_view key, text;
};
constexpr Line kRight[] = {
    {"shardinit", "shardinit: 1"},
    {"name", "name: x"},
    {"seed", "seed: 1"},
    {"dtype", "dtype: f32"},
    {"uneven", "uneven: chunk"},
    {"fans", "fans: out_in"},
    {"vars", "vars: {d: 6, n: 2, e: d / 2}"},
    {"mesh", "mesh: {axes: {data: 4, tensor: 3}}"},
    {"rules", "rules: [{a: data}, {b: [tensor]}, {c: null}]"},
    {"init", "init: {base: {normal: {mean: 0, std: 0.1 / d}}, other: base}"},
    {"modules", "modules:"},
    {"w", "  w: {shape: [d, 7], init: base, axes: [a, b], key: p, dtype: bf16, uneven: chunk}"},
    {"f", "  f: {shape: [7, d, e], init: {kaiming_normal: {mode: fan_in}}, shard: [data, tensor]}"},
    {"l", "  l:"},
    {"repeat", "    repeat: {layer: n}"},
    {"when", "    when: d > 5"},
    {"g", "    fans: in_out"},
    {"u", "    u: {shape: [layer + 1, 5], init: other, axes: [c, null], when: layer < 1}"},
    {"v",
     "    v: {shape: [5, 6, 7], init: lecun_normal, in_axis: a, axes: [a, b, c], batch_axis: 2}"},
    {"h", "    h: {shape: [5, 6], init: {expr: \"b + e\"}, axes: [a, b]}"},
    {"layouts", "layouts:"},
    {"x", "  x: {keep: [f, 'l.*'], s: {from: {stack: {axis: 0, of: [w]}}}}"},
};

std::string With(std::string_view key, std::string_view text) {
  std::string spec;
  for (const Line& line : kRight) {
    spec += std::string(line.key == key ? text : line.text) + "\n";
  }
  return spec;
}

TEST(Mistakes, ValidSpecGivesNoMessage) { EXPECT_EQ(BuildText(With("", "")).messages, ""); }

// Each of these lines has a mistake.
constexpr Line kEachWrong[] = {
    {"name", "naem: x"},
    {"name", "name: a/b"},
    {"seed", "sede: 1"},
    {"seed", "seed: 2 ^ 3"},
    {"dtype", "dytpe: f32"},
    {"dtype", "dtype: [f32]"},
    {"dtype", "data_type: f32"},
    {"uneven", "unevn: chunk"},
    {"uneven", "uneven: chunks"},
    {"uneven", "uneven: {a: 1}"},
    {"fans", "fan: out_in"},
    {"fans", "fans: in-out"},
    {"vars", "vras: {d: 6, n: 2, e: d / 2}"},
    {"vars", "vars: [d]"},
    {"vars", "vars: {d-: 6, n: 2, e: 3}"},
    {"vars", "vars: {d: 2 ^ 3, n: 2, e: d / 2}"},
    {"vars", "vars: {d: 6, n: q, e: d / 2}"},
    {"vars", "vars: {d: 6, d: 8, n: 2, e: d / 2}"},
    {"vars", "vars: {<<: 1, n: 2, e: 3}"},
    {"vars", "vars: {d: 1,000, n: 2, e: 3}"},
    {"vars", "vars: {d: max(6, 1), n: 2, e: d / 2}"},
    {"mesh", "mehs: {axes: {data: 4, tensor: 3}}"},
    {"mesh", "mesh: {axs: {data: 4, tensor: 3}}"},
    {"mesh", "mesh: {data: 4, tensor: 3}"},
    {"mesh", "mesh: {axes: {data: 4, tensor-: 3}}"},
    {"mesh", "mesh: {axes: {data: 0, tensor: 3}}"},
    {"mesh", "mesh: {axes: {<<: 0, tensor: 3}}"},
    {"mesh", "mesh: {axes: {data: q, tensor: 3}}"},
    {"mesh", "mesh: {axes: {data: '4', tensor: 3}}"},
    {"rules", "ruels: [{a: data}, {b: [tensor]}, {c: null}]"},
    {"rules", "rules: {a: data, b: tensor, c: null}"},
    {"rules", "rules: [{a: data, b: [tensor]}, {c: null}]"},
    {"rules", "rules: [{a: data}, {b-: [tensor]}, {c: null}]"},
    {"rules", "rules: [{a: data}, {b: [tensro]}, {c: null}]"},
    {"rules", "rules: [{a: data}, {b: [3]}, {c: null}]"},
    {"rules", "rules: [{a: data}, {<<: tensor}, {c: null}]"},
    {"init", "inti: {base: {normal: {mean: 0, std: 0.1 / d}}, other: base}"},
    {"init", "init: {base: {normal: {mean: 0, std: 0.1 ^ d}}, other: base}"},
    {"init", "init: {base: {normal: {mean: 0, std-: 0.1 / d}}, other: base}"},
    {"init", "init: {base: {normal: {mean: 0, sdt: 0.1 / d}}, other: base}"},
    {"init", "init: {base: {nromal: {mean: 0, std: 0.1 / d}}, other: base}"},
    {"init", "init: {base: {normal: {mean: 0, std: 0.1 / q}}, other: base}"},
    {"init", "init: {base: 5, other: base}"},
    {"init", "init: {base: {<<: 1}, other: base}"},
    {"init", "init: {base: {normal: {<<: 1}}, other: base}"},
    {"init", "init: {base-: ones, other: ones}"},
    {"init", "init: {base: {expr: 2 ^ 3}, other: base}"},
    {"modules", "moduls:"},
    {"w", "  w: 5"},
    {"w", "  w: {shap: [d, 7], init: base, axes: [a, b]}"},
    {"w", "  w: {shape: 6, init: base, axes: [a, b]}"},
    {"w", "  w: {shape: [d, q], init: base, axes: [a, b]}"},
    {"w", "  w: {shape: [d, -7], init: base, axes: [a, b]}"},
    {"w", "  w: {shape: [d, 7], inti: base, axes: [a, b]}"},
    {"w", "  w: {shape: [d, 7], init: base, axs: [a, b]}"},
    {"w", "  w: {shape: [d, 7], init: base, axes: [a, b, c]}"},
    {"w", "  w: {shape: [d, 7], init: base, axes: [a, q]}"},
    {"w", "  w: {shape: [d, 7], init: base, axes: [a, b], key: 5}"},
    {"w", "  w: {shape: [d, 7], init: base, axes: [a, b], dtype: f33}"},
    {"w", "  w: {shape: [d, 7], shape: [d, 8], init: base, axes: [a, b]}"},
    {"w", "  w: {<<: 1, init: base, axes: [a, b]}"},
    {"f", "  f: {shape: [7, d, e], init: {kaiming_normal: {moed: fan_in}}, fans: out_in}"},
    {"f", "  f: {shape: [7, d, e], init: kaiming_normal, shard: [data, tensro]}"},
    {"f", "  f: {shape: [7, d, e], init: kaiming_normal, fans: [out_in]}"},
    {"repeat", "    repat: {layer: n}"},
    {"repeat", "    repeat: {layer-: n}"},
    {"repeat", "    repeat: {layer: 0}"},
    {"repeat", "    repeat: {layer: q}"},
    {"repeat", "    repeat: [layer]"},
    {"repeat", "    repeat: {<<: n}"},
    {"when", "    when: d >"},
    {"when", "    when: q"},
    {"g", "    fans: inout"},
    {"u", "    u: {shape: [layer + 1, 5], init: other, when: layer <}"},
    {"v", "    v: {shape: [5, 6, 7], init: lecun_normal, in_axis: q, axes: [a, b, c]}"},
    {"v", "    v: {shape: [5, 6, 7], init: lecun_normal, in_axis: c, axes: [a, b-, c]}"},
    {"v", "    v: {shape: [5, 6], init: lecun_normal, in_axis: c, axes: [a, b, c]}"},
    {"v", "    v: {shape: [5, 6, 7], init: lecun_normal, in_axsi: a, axes: [a, b, c]}"},
    {"h", "    h: {shape: [5, 6], init: {expr: \"b + e + q\"}, axes: [a, b]}"},
    {"h", "    h: {shape: [5, 6], init: {expr: \"b + e\"}, axes: [a, b-]}"},
    {"h", "    h: {shape: [5, q], init: {expr: \"b + e\"}, axes: [a, b]}"},
    {"layouts", "layuots:"},
    {"x", "  x: {keep: [f, 'l.*'], s: {from: {stack: {axis: q, of: [w]}}}}"},
    {"x", "  x: {keep: [f, 'l.*'], s: {form: w, axes: [a, b]}}"},
    {"x", "  x: {keep: [f, 'l.*'], s: {from: {stack: {axis: 0, <<: 1}}}}"},
    {"x", "  x: {keep: [f, 'l.*'], s: {from: {<<: 1}}}"},
    {"x", "  x: {keep: [f, 'l.*'], s: {from: {stack: {axis: 0, of: [q]}}}}"},
    {"x", "  x: {keep: {f: 1}, s: {from: {stack: {axis: 0, of: [w]}}}}"},
    {"x", "  x: {kep: [f, 'l.*'], s: {from: {stack: {axis: 0, of: [w]}}}}"},
};

TEST(Mistakes, EachMistakeGivesOneMessage) {
  for (const Line& wrong : kEachWrong) {
    const std::string messages = BuildText(With(wrong.key, wrong.text)).messages;
    EXPECT_EQ(CountErrors(messages), 1) << wrong.text << "\n" << messages;
  }
}

// Keys that name tensors by paths and numbers cause no second message.
TEST(Mistakes, EachMistakeNextToLanguagesGivesOneMessage) {
  constexpr std::string_view kSharding[] = {
      "sharding: {map: {w: [data], l.0.u: [tensor], l.1.v: [null, tensor], 'l.*.h': {data: "
      "Shard(0)}, s: [data]}}",
      "sharding: [{megatron: {column: w, row: l.1.h}}, {fully_shard: {axes: pipe, dimensions: "
      "{l.1.v: n - 1}}}]",
      "sharding: {haliax: {a: data, b: tensor}, pipeline: {axis: pipe, layers: 'l.*', "
      "count: n, first: [w, f], last: s}}",
  };
  for (const std::string_view sharding : kSharding) {
    const auto with = [&](std::string_view key, std::string_view text) {
      std::string spec = With(key, text);
      const size_t rules = spec.find("rules:");
      spec.replace(rules, spec.find('\n', rules) - rules, sharding);
      const size_t tensor = spec.find("tensor: 3");
      if (tensor != spec.npos) spec.insert(tensor, "pipe: 2, ");
      return spec;
    };
    const std::string messages = BuildText(with("", "")).messages;
    ASSERT_EQ(messages, "");
    for (const Line& wrong : kEachWrong) {
      if (wrong.key == "rules") continue;
      if (wrong.text.find("[a, q]") != wrong.text.npos) continue;  // Only rules need to know it.
      const std::string said = BuildText(with(wrong.key, wrong.text)).messages;
      EXPECT_EQ(CountErrors(said), 1) << sharding << "\n" << wrong.text << "\n" << said;
    }
  }
}

// Two mistakes in different keys are both found, whatever stages find them.
TEST(Mistakes, NoMistakeHidesAnother) {
  constexpr Line kWrong[] = {
      {"name", "naem: x"},
      {"seed", "seed: -1"},
      {"uneven", "uneven: chunks"},
      {"mesh", "mesh: {axes: {data: 0, tensor: 3}}"},
      {"w", "  w: {shape: [d, 7], inti: base, axes: [a, b]}"},
      {"f", "  f: {shape: [7, d, e], init: {kaiming_normal: {moed: fan_in}}, fans: out_in}"},
      {"u", "    u: {shape: [layer + 1, 0], init: other, axes: [c, null]}"},
      {"v", "    v: {shape: [5, 6, 7], init: ones, dtype: f33, axes: [a, b, c]}"},
      {"h", "    h: {shape: [5, q], init: {expr: \"b + e\"}, axes: [a, b]}"},
  };
  for (const Line& first : kWrong) {
    for (const Line& second : kWrong) {
      if (first.key >= second.key) continue;
      std::string spec;
      for (const Line& line : kRight) {
        const Line* const wrong = line.key == first.key    ? &first
                                  : line.key == second.key ? &second
                                                           : &line;
        spec += std::string(wrong->text) + "\n";
      }
      const std::string messages = BuildText(spec).messages;
      EXPECT_EQ(CountErrors(messages), 2) << first.text << "\n" << second.text << "\n" << messages;
    }
  }
}

TEST(Mistakes, MistakesOfALayoutAreShownWithOthers) {
  std::string spec = With("name", "naem: x");
  spec += "  y: {keep: ['*'], s: {from: {stack: {axis: 5, of: [w]}}}}\n";
  const std::string messages = BuildText(spec).messages;
  EXPECT_EQ(CountErrors(messages), 2) << messages;
}

TEST(Mistakes, MistakesOfOneExpressionAreShownTogether) {
  const std::string messages =
      BuildText(With("w", "  w: {shape: [q + r + q, s], init: ones, axes: [a, b]}")).messages;
  EXPECT_EQ(CountErrors(messages), 3) << messages;
}

// A missing include could define any name.
TEST(Mistakes, ReportsAMissingSpec) {
  const std::string messages =
      BuildText(
          "shardinit: 1\nname: x\ninclude: none.yaml\n"
          "modules: {w: {init: ones}, v: {shape: [q]}, u: {dtype: 5, init: {nromal: {}}}}\n")
          .messages;
  EXPECT_EQ(CountErrors(messages), 2) << messages;
}

}  // namespace
}  // namespace shardinit
