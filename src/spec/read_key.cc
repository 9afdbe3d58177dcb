#include <fmt/format.h>

#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "spec/reader.h"

// Reads a tensor's `key` if it is a JAX key, `{jax: {seed: 0, split: [3, 1]}}`, or a place in
// PyTorch's stream, `{torch: {position: 1024}}`.

namespace shardinit {
namespace {

struct JaxStep {
  std::string_view name;
  size_t numbers;
  bool is_first;  // begins a key; other steps derive one key from another
  std::string_view form;
};

constexpr JaxStep kJaxSteps[] = {
    {"seed", 1, true, "`seed: 0`"},
    {"words", 2, true, "`words: [0, 42]`, the two of `jax.random.key_data`"},
    {"split", 2, false, "`split: [3, 1]`, for `jax.random.split(key, 3)[1]`"},
    {"fold_in", 1, false, "`fold_in: 7`, or `fold_in: [Dense_0, 1]` as Flax does"},
};

struct TorchNumber {
  std::string_view name;
  ExprPtr TorchKeySpec::*place;
};

constexpr TorchNumber kTorchNumbers[] = {{"position", &TorchKeySpec::position},
                                         {"spare", &TorchKeySpec::spare},
                                         {"skip", &TorchKeySpec::skip}};

constexpr std::string_view kJaxForm = "write it as in `key: {jax: {seed: 0, split: [3, 1]}}`";

constexpr std::string_view kTorchForm = "write it as in `key: {torch: {position: 1024}}`";

}  // namespace

std::optional<KeySpec> SpecReader::ReadGivenKey(const Node& node) {
  NoteGaps(node);
  const std::string_view kind = node.entries.size() == 1 ? node.entries[0].key->text : "";
  if (kind == "jax") return ReadJaxKey(node, node.entries[0]);
  if (kind == "torch") return ReadTorchKey(node, node.entries[0]);
  if (!node.incomplete) {
    Error(node, "`key` must be a path, `{jax: …}` or `{torch: …}`", std::string(kJaxForm));
  }
  return std::nullopt;
}

std::optional<KeySpec> SpecReader::ReadTorchKey(const Node& node, const Node::Entry& entry) {
  const size_t faults = Faults();
  if (!IsMap(entry, kTorchForm)) return std::nullopt;
  NoteGaps(*entry.value);
  TorchKeySpec key = {node.span, nullptr, nullptr, nullptr};
  for (const Node::Entry& item : entry.value->entries) {
    if (const TorchNumber* const row = FindNamed(kTorchNumbers, item.key->text)) {
      key.*row->place = ReadExpr(item);
    } else {
      Error(*item.key, fmt::format("unknown key {} in `torch`", Quote(item.key->text)),
            DidYouMean(item.key->text, NamesOf(kTorchNumbers)));
    }
  }
  if (key.skip && (key.position || key.spare)) {
    Error(*entry.value, "`skip` counts from the previous tensor, and `position` from the beginning",
          "write one of them");
  } else if (Faults() == faults && !key.position && !key.skip && !entry.value->incomplete) {
    Error(*entry.value, "`torch` has no `position`", std::string(kTorchForm));
  }
  if (Faults() != faults || (!key.position && !key.skip)) return std::nullopt;
  return key;
}

std::optional<KeySpec> SpecReader::ReadJaxKey(const Node& node, const Node::Entry& entry) {
  const size_t faults = Faults();
  const Node& steps = *entry.value;
  JaxKeySpec key = {node.span, {}};
  if (steps.IsMap()) {
    ReadJaxSteps(steps, &key);
  } else if (steps.IsSequence()) {
    for (const Node::Entry& item : steps.entries) {
      if (IsMap({entry.key, item.value}, "give steps, such as `{seed: 0}`")) {
        ReadJaxSteps(*item.value, &key);
      }
    }
  } else {
    Error(steps,
          fmt::format("`jax` must be a mapping of steps or a list of such mappings, not {}",
                      Describe(steps)),
          std::string(kJaxForm));
  }
  if (Faults() == faults && key.steps.empty()) {
    Error(node, "this key has no step", std::string(kJaxForm));
  }
  if (Faults() != faults) return std::nullopt;
  return key;
}

void SpecReader::ReadJaxSteps(const Node& map, JaxKeySpec* key) {
  NoteGaps(map);
  for (const Node::Entry& item : map.entries) {
    const std::string_view name = item.key->text;
    const JaxStep* const row = FindNamed(kJaxSteps, name);
    if (row == nullptr) {
      Error(*item.key, fmt::format("unknown step {} in `jax`", Quote(name)),
            DidYouMean(name, NamesOf(kJaxSteps)));
      continue;
    }
    if (row->is_first != key->steps.empty()) {
      Error(*item.key,
            row->is_first
                ? fmt::format("`{}` must be the first step of a key, and may not be repeated", name)
                : fmt::format("a key begins with `seed` or `words`, not with `{}`", name),
            std::string(kJaxForm));
    }
    JaxKeySpec::Step& step = key->steps.emplace_back();
    step.name = name;
    if (row->name == "seed") {
      const auto seed = ReadSeed(item);
      if (const auto* large = std::get_if<uint64_t>(&seed))
        step.large_seed = *large;
      else
        step.numbers.push_back(std::get<ExprPtr>(seed));
    } else if (row->name == "fold_in" && item.value->IsSequence()) {
      ReadStatics(item, &step);
    } else if (row->numbers == 1) {
      step.numbers.push_back(ReadExpr(item));
    } else if (!item.value->IsSequence() || item.value->entries.size() != row->numbers) {
      Error(*item.value, fmt::format("`{}` takes a list of two numbers", name),
            fmt::format("write {}", row->form));
    } else {
      step.numbers = ReadExprList(item, fmt::format("a number of `{}`", name));
    }
  }
}

// Reads numbers as expressions, and everything else as text.
void SpecReader::ReadStatics(const Node::Entry& entry, JaxKeySpec::Step* step) {
  NoteGaps(*entry.value);
  for (const Node::Entry& item : entry.value->entries) {
    JaxKeySpec::Step::Static& folded = step->statics.emplace_back();
    if (IsNumber(*item.value)) {
      folded.number = ReadExpr({entry.key, item.value});
    } else if (IsText({entry.key, item.value})) {
      folded.text = ReadPathSpec(*item.value);
    }
  }
  if (entry.value->entries.empty() && !entry.value->incomplete) {
    Error(*entry.value, "`fold_in` has an empty list", "write it as in `fold_in: [Dense_0, 1]`");
  }
}

}  // namespace shardinit
