#include "spec/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/suggest.h"
#include "base/text.h"
#include "spec/names.h"
#include "spec/parser.h"

namespace shardinit {
namespace {

constexpr int kDeepestBlock = 16;
constexpr std::string_view kBlockForm =
    "write it as in `blocks: {mlp: {args: [width], up: {shape: [4 * width, width]}}}`";

std::vector<std::string> NamesOfArgs(const std::vector<Located<std::string>>& args) {
  std::vector<std::string> names;
  for (const auto& arg : args) names.push_back(arg.value);
  return names;
}

}  // namespace

void SpecBlocks::Read(const Node& root, SpecParser& parser) {
  const Node::Entry* blocks = root.FindEntry("blocks");
  may_lack_ = root.incomplete;
  if (blocks == nullptr) return;
  may_lack_ |= !blocks->value->IsMap() || blocks->value->incomplete;
  if (!parser.IsMap(*blocks, kBlockForm)) return;
  for (const Node::Entry& entry : blocks->value->entries) {
    blocks_.try_emplace(entry.key->text, Block{entry});
  }
  for (auto& [name, block] : blocks_) Check(block, parser);
}

// Checks a block once, so that its errors are not reported again for each use.
void SpecBlocks::Check(Block& block, SpecParser& parser) {
  if (block.state != Block::kNew) return;
  block.state = Block::kBusy;
  const size_t before = parser.Faults();
  if (CheckIdentifier(*block.entry.key, "block", parser.diagnostics()) &&
      parser.IsMap(block.entry, kBlockForm)) {
    ReadArgs(block, parser);
    ++checking_;
    ModuleSpec unused;
    parser.ReadModule(block.entry, 0, kBlockKeys, unused);
    --checking_;
  }
  block.state = parser.Faults() == before ? Block::kGood : Block::kWrong;
}

void SpecBlocks::ReadArgs(Block& block, SpecParser& parser) {
  const Node::Entry* args = block.entry.value->FindEntry("args");
  if (args == nullptr || !parser.IsSequence(*args, "list names, such as `args: [width, layers]`")) {
    return;
  }
  for (const Node::Entry& arg : args->value->entries) {
    if (!CheckIdentifier(*arg.value, "argument", parser.diagnostics()) ||
        !CheckVariable(*arg.value, parser.diagnostics()))
      continue;
    const auto before =
        std::ranges::find(block.args, arg.value->text, &Located<std::string>::value);
    if (before == block.args.end()) {
      block.args.push_back(SpecReader::Text(*arg.value));
      continue;
    }
    parser.Error(*arg.value, fmt::format("argument {} is given twice", Quote(arg.value->text)));
    parser.diagnostics().Note(before->span, "first here");
  }
}

// Reports an error and returns null if the block does not exist.
SpecBlocks::Block* SpecBlocks::Find(const Node::Entry& name, SpecParser& parser) {
  if (!parser.IsText(name)) return nullptr;
  const auto found = blocks_.find(name.value->text);
  if (found != blocks_.end()) return &found->second;
  std::vector<std::string> known;
  for (const auto& [known_name, block] : blocks_) known.emplace_back(known_name);
  if (may_lack_) {
    parser.NoteFault();
    return nullptr;
  }
  return parser.Error(
      *name.value, fmt::format("unknown block {}", Quote(name.value->text)),
      known.empty() ? "the spec has no `blocks`" : DidYouMean(name.value->text, known));
}

std::optional<std::vector<Named<VarSpec>>> SpecBlocks::Arguments(const Node& map, const Node& name,
                                                                 const Block& block,
                                                                 SpecParser& parser) {
  const size_t before = parser.Faults();
  const Node::Entry* given = map.FindEntry("args");
  std::vector<Named<VarSpec>> arguments;
  if (given != nullptr) arguments = parser.ReadVariables(*given, "argument");
  const std::vector<std::string> known = NamesOfArgs(block.args);
  for (const auto& argument : arguments) {
    const std::string& text = argument.name.value;
    if (text.empty() || std::ranges::find(known, text) != known.end()) continue;
    parser.ErrorAt(argument.name.span,
                   fmt::format("block {} has no argument {}", Quote(name.text), Quote(text)),
                   known.empty() ? "it takes no arguments" : DidYouMean(text, known));
    parser.diagnostics().Note(block.entry.key->span, "the block");
  }
  if (parser.Faults() != before) return std::nullopt;
  for (const auto& arg : block.args) {
    if (std::ranges::any_of(arguments, [&](const auto& a) { return a.name.value == arg.value; }))
      continue;
    parser.Error(name, fmt::format("block {} needs {}", Quote(name.text), Quote(arg.value)),
                 fmt::format("write `args: {{{}: …}}` next to `block`", arg.value));
    parser.diagnostics().Note(arg.span, "the argument");
  }
  if (parser.Faults() != before) return std::nullopt;
  return arguments;
}

bool SpecBlocks::Use(const Node& map, size_t prefix, ModuleSpec& module, SpecParser& parser) {
  const Node::Entry* name = map.FindEntry("block");
  const Node::Entry* args = map.FindEntry("args");
  if (name == nullptr || name->value->IsMap()) {
    if (name == nullptr && args != nullptr && !HoldsTensor(*args->value)) {
      parser.Error(*args->key, "`args` belong to a block, but the module has no `block`",
                   "name one of `blocks`, as in `block: tower`");
    }
    return false;
  }
  Block* block = Find(*name, parser);
  if (block == nullptr) return true;
  if (block->state == Block::kBusy) {
    parser.Error(*name->value, fmt::format("block {} uses itself", Quote(name->value->text)));
    parser.diagnostics().Note(block->entry.key->span, "the block");
    return true;
  }
  // A new block is checked while the blocks that use it are being checked.
  if (std::max(depth_, checking_) >= kDeepestBlock) {
    parser.Error(*name->value,
                 fmt::format("blocks are used more than {} levels deep", kDeepestBlock));
    return true;
  }
  Check(*block, parser);
  if (block->state == Block::kWrong) {
    parser.NoteFault();
    return true;
  }
  auto arguments = Arguments(map, *name->value, *block, parser);
  if (!arguments || checking_ > 0) return true;
  nodes_ += block->entry.value->size;
  if (nodes_ > NodeStore::kMostNodes) {
    parser.Error(*name->value,
                 fmt::format("blocks make a spec of more than {} values", NodeStore::kMostNodes));
    parser.diagnostics().ThrowIfErrors();
  }
  auto inner = std::make_unique<ModuleSpec>();
  ++depth_;
  parser.ReadModule(block->entry, prefix, kBlockKeys, *inner);
  --depth_;
  inner->arguments = *std::move(arguments);
  module.members.push_back({{"", name->value->span}, std::move(inner)});
  return true;
}

}  // namespace shardinit
