#include "formats/parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "report/text.h"

namespace shardinit {
namespace {

// Each table is sorted. Underscores, digits and capitals separate the words of a key.

// A key with only these words may hold a model, and no other part of a run.
constexpr std::string_view kModelWords[] = {
    "app",     "averaged",      "avg",    "base",    "best",   "checkpoint", "ckpt",    "dict",
    "dicts",   "discriminator", "ema",    "final",   "fsdp",   "generator",  "last",    "main",
    "model",   "models",        "module", "modules", "net",    "nets",       "network", "networks",
    "online",  "param",         "params", "raw",     "sd",     "shadow",     "state",   "states",
    "student", "swa",           "target", "teacher", "weights"};

// A key with one of these words holds an optimizer.
constexpr std::string_view kOptimizerWords[] = {"optim",     "optimiser",  "optimisers",
                                                "optimizer", "optimizers", "optims"};

// A key with only these words holds another part of a run. A model may use such names, too, so they
// count only next to a model or optimizer.
constexpr std::string_view kRunWords[] = {
    "acc",     "accuracy",  "all",        "amp",      "arg",        "args",       "batch",
    "best",    "callback",  "callbacks",  "cfg",      "config",     "count",      "counter",
    "cpu",     "criterion", "cuda",       "current",  "data",       "dataloader", "dataset",
    "dict",    "dicts",     "early",      "epoch",    "epochs",     "eval",       "fp",
    "global",  "grad",      "history",    "hparams",  "hub",        "hyper",      "info",
    "iter",    "iteration", "iterations", "iters",    "last",       "learning",   "loader",
    "log",     "logger",    "logs",       "loops",    "loss",       "losses",     "lr",
    "message", "meta",      "metadata",   "meter",    "meters",     "metric",     "metrics",
    "num",     "numpy",     "options",    "opts",     "parameters", "patience",   "progress",
    "python",  "random",    "rank",       "rate",     "rng",        "rngs",       "sampler",
    "samples", "scaler",    "sched",      "schedule", "scheduler",  "schedulers", "score",
    "seed",    "seeds",     "seen",       "start",    "state",      "states",     "step",
    "steps",   "stopping",  "time",       "tokens",   "top",        "torch",      "total",
    "train",   "trainer",   "training",   "val",      "version",    "warmup",     "world"};

// The last word in names of state that optimizers keep for each parameter.
constexpr std::string_view kMoments[] = {"acc_delta",       "exp_avg",        "exp_avg_diff",
                                         "exp_avg_sq",      "exp_avg_sq_col", "exp_avg_sq_row",
                                         "exp_inf",         "grad_avg",       "max_exp_avg_sq",
                                         "momentum_buffer", "mu_product",     "square_avg"};

template <size_t n>
bool IsOneOf(const std::string_view (&words)[n], std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// Splits `netG_ema2` into `net` and `ema`: single letters are only numbering.
std::vector<std::string> WordsOf(std::string_view key) {
  std::vector<std::string> words(1);
  bool was_small = false;
  for (const char c : key) {
    const bool is_capital = c >= 'A' && c <= 'Z', is_small = c >= 'a' && c <= 'z';
    if (!is_small && (was_small || !is_capital)) words.emplace_back();
    if (is_small || is_capital) {
      words.back() += static_cast<char>(is_capital ? c - 'A' + 'a' : c);
    }
    was_small = is_small;
  }
  std::erase_if(words, [](const std::string& word) { return word.size() < 2; });
  return words;
}

template <size_t n>
bool HasOnly(const std::string_view (&words)[n], std::string_view key) {
  const std::vector<std::string> of = WordsOf(key);
  return !of.empty() && key.find('.') == key.npos &&
         std::all_of(of.begin(), of.end(), [&](const auto& word) { return IsOneOf(words, word); });
}

bool NamesModel(std::string_view key) { return HasOnly(kModelWords, key); }

bool NamesOptimizer(std::string_view key) {
  if (key.find('.') != key.npos) return false;
  const std::vector<std::string> words = WordsOf(key);
  if (words.size() > 1 && words[0] == "opt" && (words[1] == "state" || words[1] == "states")) {
    return true;
  }
  return std::any_of(words.begin(), words.end(),
                     [](const auto& word) { return IsOneOf(kOptimizerWords, word); });
}

// Returns whether a key, or a name that ends in it, names optimizer state.
bool NamesMoment(std::string_view key) {
  return IsOneOf(kMoments, key.substr(key.find_last_of("./") + 1)) ||
         key.starts_with("param_groups.") || (key.starts_with("state.") && key.ends_with(".step"));
}

bool NamesGenerator(std::string_view key) {
  const std::vector<std::string> words = WordsOf(key.substr(key.rfind('.') + 1));
  return std::any_of(words.begin(), words.end(), [](const auto& word) {
    return word == "rng" || word == "rngs" || word == "random";
  });
}

// What a key holds.
enum class Content {
  kNothing,  // no tensors
  kWeights,  // tensors that may be a model's
  kState,    // only state: of an optimizer, of random numbers or of the run
  kMixed,
};

struct Node {
  std::map<std::string, Node> children = {};
  std::vector<size_t> entries = {};  // several if they have the same keys
  Content content = Content::kNothing;
  PartSize size = {};
  bool has_only_bytes = true;  // all tensors are vectors of bytes
  bool has_state = false;      // a child has state
  int64_t models = 0;          // children that may be models, by name
  bool is_container = false;   // all tensors but numbers and lists are in such children
};
using Child = std::pair<const std::string, Node>;

// A part that may be the model: a node without the parts of a run inside it.
struct Candidate {
  std::vector<std::string> keys;
  const Node* node;
};

class Finder {
 public:
  Finder(const std::vector<PartEntry>& entries, KeyOrigin origin, const std::string& path)
      : entries_(entries), origin_(origin), path_(path) {
    for (size_t i = 0; i < entries.size(); ++i) {
      Node* node = &root_;
      node->size.Add(entries[i]);
      for (size_t k = 0; k < std::min(entries[i].keys.size(), kMostLevels); ++k) {
        node = &node->children[entries[i].keys[k]];
        node->size.Add(entries[i]);
      }
      node->entries.push_back(i);
    }
    Classify(&root_, "", 0);
  }

  ModelChoice Choose(const std::string& wanted) {
    if (entries_.empty() && origin_ != KeyOrigin::kStored) return {};
    const Candidate chosen = wanted.empty() ? OnlyCandidate({{}, &root_}) : PartAt(wanted);
    ModelChoice choice;
    if (!chosen.keys.empty()) choice.part = KeyOf(chosen.keys);
    // The siblings of each key on the path are other parts.
    const Node* node = &root_;
    std::vector<std::string> keys;
    for (const std::string& key : chosen.keys) {
      for (const Child& child : node->children) {
        if (child.first != key) AddOther(keys, child, &choice);
      }
      keys.push_back(key);
      node = &node->children.at(key);
    }
    AddEntries(*chosen.node, &keys, &choice);
    std::sort(choice.entries.begin(), choice.entries.end());
    return choice;
  }

 private:
  // Only hostile names have more keys.
  static constexpr size_t kMostLevels = 64;
  static constexpr size_t kMostNamed = 16;

  static bool IsLeaf(const Node& node) { return node.children.empty(); }
  const PartEntry& EntryOf(const Node& node) const { return entries_[node.entries.front()]; }
  bool IsTensor(const Node& node) const {
    return IsLeaf(node) && EntryOf(node).kind == PartEntry::Kind::kTensor;
  }
  // Returns whether a child is a dictionary that, by its name, may be or contain a model.
  static bool IsNamedPart(const Child& child) {
    return !IsLeaf(child.second) && child.second.content == Content::kWeights &&
           (NamesModel(child.first) || child.second.is_container);
  }

  // Returns whether a child is a number or a list, such as `class_weights`. Next to a model, these
  // are not parameters.
  bool IsList(const Child& child) const {
    if (!IsTensor(child.second) || child.first.find('.') != child.first.npos) return false;
    const PartEntry& entry = EntryOf(child.second);
    return entry.rank < 2 || !entry.is_float;
  }

  void Classify(Node* node, std::string_view key, int depth) {
    bool has_weights = false, has_moment = false, has_parts = false;
    for (auto& [name, child] : node->children) {
      Classify(&child, name, depth + 1);
      has_moment |= IsOneOf(kMoments, name);
      has_parts |= !IsLeaf(child) && child.content == Content::kWeights;
      node->has_only_bytes &= child.has_only_bytes;
    }
    if (depth == 0 && has_parts && origin_ == KeyOrigin::kStored) MarkNumbers(node);
    for (const Child& child : node->children) {
      const Content content = child.second.content;
      has_weights |= content == Content::kWeights || content == Content::kMixed;
      node->has_state |= content == Content::kState || content == Content::kMixed;
      node->models += IsNamedPart(child);
    }
    bool has_state = node->has_state;
    for (const size_t i : node->entries) {
      const PartEntry& entry = entries_[i];
      if (entry.kind == PartEntry::Kind::kObject) continue;
      const bool is_bytes = entry.is_byte && entry.rank == 1;
      node->has_only_bytes &= is_bytes;
      (is_bytes && NamesGenerator(key) ? has_state : has_weights) = true;
    }
    // Optax keeps these for each parameter.
    has_moment |= node->children.contains("mu") && node->children.contains("nu");
    const bool is_optimizer =
        has_moment || NamesMoment(key) || IsStateOfOptimizer(*node) ||
        (NamesOptimizer(key) &&
         (origin_ == KeyOrigin::kStored || (origin_ == KeyOrigin::kDots && depth <= 3)));
    const bool names_model = NamesModel(key) && key != "state" && key != "states";
    const bool is_generator = origin_ == KeyOrigin::kStored && depth > 0 && has_weights &&
                              !IsLeaf(*node) && node->has_only_bytes && !names_model;
    node->content = is_optimizer || is_generator ? Content::kState
                    : has_weights                ? (has_state ? Content::kMixed : Content::kWeights)
                    : has_state                  ? Content::kState
                                                 : Content::kNothing;
    if (node->content == Content::kMixed && !HasWeightsBesideState(*node)) {
      node->content = Content::kState;
    }
    node->is_container =
        origin_ == KeyOrigin::kStored && node->models > 0 &&
        std::all_of(node->children.begin(), node->children.end(), [&](const Child& child) {
          return IsNamedPart(child) || IsOfRun(*node, child) || IsList(child);
        });
  }

  // Marks the tensors next to dictionaries of tensors as state, if all of them are single numbers
  // with names of kRunWords.
  void MarkNumbers(Node* node) const {
    const auto is_number = [&](const auto& child) {
      return !IsTensor(child.second) ||
             (EntryOf(child.second).rank == 0 && HasOnly(kRunWords, child.first));
    };
    if (!std::all_of(node->children.begin(), node->children.end(), is_number)) return;
    for (auto& [name, child] : node->children) {
      if (IsTensor(child)) child.content = Content::kState;
    }
  }

  // Returns whether a dictionary looks like the state of a PyTorch optimizer.
  static bool IsStateOfOptimizer(const Node& node) {
    return node.children.contains("param_groups") &&
           std::none_of(node.children.begin(), node.children.end(), [](const Child& child) {
             return child.first != "state" && IsNamedPart(child);
           });
  }

  bool HasWeightsBesideState(const Node& node) const {
    return !node.entries.empty() ||
           std::any_of(node.children.begin(), node.children.end(), [&](const Child& child) {
             const auto& [name, of] = child;
             if (of.content == Content::kMixed) return true;
             if (of.content != Content::kWeights || IsOfRun(node, child)) return false;
             return !IsTensor(of) || EntryOf(of).rank > 0 || name.find('.') != name.npos;
           });
  }

  bool IsOfRun(const Node& node, const Child& child) const {
    const auto& [name, of] = child;
    if (of.content == Content::kState || of.content == Content::kNothing) return true;
    if (of.content == Content::kMixed || IsNamedPart(child) || !HasOnly(kRunWords, name)) {
      return false;
    }
    return node.has_state || (origin_ == KeyOrigin::kStored && node.models > 0);
  }

  static Candidate ChildCandidate(const Candidate& of, const Child& child) {
    Candidate within{of.keys, &child.second};
    within.keys.push_back(child.first);
    return within;
  }

  // Adds the candidates in a node. `is_part` is true if the keys that lead to it are not the
  // model's.
  void Find(const Candidate& at, bool is_part) {
    const Node& node = *at.node;
    if (node.content == Content::kState || node.content == Content::kNothing) return;
    std::vector<const Child*> named, unnamed, mixed;
    bool has_vectors = false, has_tensors = false;
    for (const Child& child : node.children) {
      const auto& [name, of] = child;
      if (IsOfRun(node, child)) continue;
      if (of.content == Content::kMixed) {
        mixed.push_back(&child);
      } else if (IsTensor(of)) {
        has_vectors |= EntryOf(of).rank > 0;
        has_tensors |= !IsList(child);
      } else if (IsNamedPart(child) || (IsLeaf(of) && NamesModel(name))) {
        named.push_back(&child);
      } else if (!IsLeaf(of)) {  // Objects cannot be read.
        unnamed.push_back(&child);
      }
    }
    const bool has_parts = !named.empty() || !unnamed.empty() || !mixed.empty();
    has_tensors |= has_vectors && !has_parts;
    const bool has_more = has_tensors || !unnamed.empty();
    const bool is_stored = origin_ == KeyOrigin::kStored;
    // Weights whose keys do not name parts form one model, and so do names with dots.
    const bool is_one = node.has_state ? (is_stored ? has_tensors && named.empty() : has_more)
                                       : !is_stored || named.empty() || (is_part && has_more);
    if (!is_one) {
      for (const Child* child : named) Find(ChildCandidate(at, *child), true);
      for (const Child* child : unnamed) Find(ChildCandidate(at, *child), true);
    }
    for (const Child* child : mixed) Find(ChildCandidate(at, *child), true);
    if (is_one || (node.has_state ? has_tensors : has_more)) candidates_.push_back(at);
  }

  Candidate OnlyCandidate(const Candidate& at) {
    Find(at, !at.keys.empty());
    if (candidates_.empty()) RefuseNone();
    if (candidates_.size() > 1) RefuseMany();
    return candidates_.front();
  }

  // Finds a node by its keys, joined by dots. A key may contain dots itself.
  const Node* NodeAt(const Node& node, std::string_view rest,
                     std::vector<std::string>* keys) const {
    for (const auto& [key, child] : node.children) {
      if (!rest.starts_with(key)) continue;
      keys->push_back(key);
      if (rest.size() == key.size()) return &child;
      if (rest[key.size()] == '.') {
        const Node* const found = NodeAt(child, rest.substr(key.size() + 1), keys);
        if (found != nullptr) return found;
      }
      keys->pop_back();
    }
    return nullptr;
  }

  Candidate PartAt(const std::string& wanted) {
    Candidate part{{}, &root_};
    if (wanted == ".") return part;
    part.node = NodeAt(root_, wanted, &part.keys);
    if (part.node != nullptr && part.node->size.tensors > 0 && !IsTensor(*part.node)) {
      return part.node->content == Content::kMixed ? OnlyCandidate(part) : part;
    }
    std::vector<std::string> names;
    for (const auto& [key, child] : root_.children) {
      if (!IsTensor(child) && child.size.tensors > 0) names.push_back(Quote(key));
    }
    names.resize(std::min(names.size(), kMostNamed));
    throw Usage(fmt::format("`{}` has no part {} with tensors", Escape(path_), Quote(wanted)),
                names.empty() ? fmt::format("leave out `{}`", kPartOption)
                              : fmt::format("use one of {}", fmt::join(names, ", ")));
  }

  void AddEntries(const Node& node, std::vector<std::string>* keys, ModelChoice* choice) const {
    choice->entries.insert(choice->entries.end(), node.entries.begin(), node.entries.end());
    for (const Child& child : node.children) {
      const bool is_extra = child.first.find("_extra_state") != child.first.npos;
      if (node.content == Content::kMixed && !is_extra && IsOfRun(node, child)) {
        AddOther(*keys, child, choice);
        continue;
      }
      keys->push_back(child.first);
      AddEntries(child.second, keys, choice);
      keys->pop_back();
    }
  }

  static void AddOther(std::vector<std::string> keys, const Child& child, ModelChoice* choice) {
    keys.push_back(child.first);
    choice->others[KeyOf(keys)].Add(child.second.size);
  }

  [[noreturn]] void RefuseNone() const {
    std::vector<std::string> names;
    for (const auto& [key, child] : root_.children) {
      if (names.size() < kMostNamed) names.push_back(Quote(key));
    }
    throw Error(ExitCode::kRefused,
                fmt::format("`{}` contains no model: its keys are {}", Escape(path_),
                            names.empty() ? "none" : fmt::to_string(fmt::join(names, ", "))));
  }

  [[noreturn]] void RefuseMany() const {
    std::vector<std::string> names;
    for (const auto& [keys, node] : candidates_) {
      if (names.size() == kMostNamed) break;
      names.push_back(fmt::format("{} ({}, {})", Quote(KeyOf(keys)),
                                  Count(node->size.tensors, "tensor"),
                                  Count(node->size.elements, "element")));
    }
    throw Error(ExitCode::kRefused,
                fmt::format("`{}` has {} parts that may be the model: {}", Escape(path_),
                            candidates_.size(), fmt::join(names, ", ")),
                fmt::format("choose one, as in `{0} {1}`; for a source, as in `part: {1}`",
                            kPartOption, Escape(KeyOf(candidates_.front().keys))));
  }

  static std::string KeyOf(const std::vector<std::string>& keys) {
    return keys.empty() ? "." : fmt::to_string(fmt::join(keys, "."));
  }

  const std::vector<PartEntry>& entries_;
  const KeyOrigin origin_;
  const std::string& path_;
  Node root_;
  std::vector<Candidate> candidates_;
};

}  // namespace

bool MayHoldState(std::string_view name, const Shape& shape, const DTypeInfo* dtype) {
  if (shape.size() == 1 && dtype != nullptr && dtype->bytes == 1) return true;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view key = name.substr(begin, end - begin);
    if (NamesMoment(key) || key == "mu" || key == "nu" || key == "param_groups") return true;
    begin = end + 1;
  }
  return false;
}

PartEntry TensorEntry(std::vector<std::string> keys, const Shape& shape, const DTypeInfo* dtype) {
  PartEntry entry{.keys = std::move(keys), .kind = PartEntry::Kind::kTensor};
  entry.rank = std::ssize(shape);
  entry.elements = ElementCount(shape);
  entry.is_float = dtype == nullptr || dtype->has_fractions();
  entry.is_byte = dtype != nullptr && dtype->dtype == DType::u8;
  if (dtype == nullptr || __builtin_mul_overflow(entry.elements, dtype->bytes, &entry.bytes)) {
    entry.bytes = 0;
  } else {
    entry.elements *= dtype->numbers;  // fewer than bits
  }
  return entry;
}

void PartSize::Add(const PartEntry& entry) {
  Add({1, entry.kind != PartEntry::Kind::kObject, entry.elements, entry.bytes});
}

void PartSize::Add(const PartSize& size) {
  for (const auto member :
       {&PartSize::entries, &PartSize::tensors, &PartSize::elements, &PartSize::bytes}) {
    // Hostile files may have tensors of any size.
    if (__builtin_add_overflow(this->*member, size.*member, &(this->*member))) {
      this->*member = INT64_MAX;
    }
  }
}

ModelChoice ChooseModel(const std::vector<PartEntry>& entries, KeyOrigin origin,
                        const std::string& wanted, const std::string& path) {
  return Finder(entries, origin, path).Choose(wanted);
}

std::vector<std::string> SplitAtDots(const std::string& name) {
  std::vector<std::string> keys;
  for (size_t begin = 0;;) {
    const size_t dot = name.find('.', begin);
    keys.push_back(name.substr(begin, dot - begin));
    if (dot == name.npos) return keys;
    begin = dot + 1;
  }
}

}  // namespace shardinit
