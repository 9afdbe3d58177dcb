// Expands modules with arguments: `blocks`, and modules that use them by `block` and `args`.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spec/spec.h"
#include "spec/yaml.h"

namespace shardinit {

class SpecParser;

// Reads the members of a block again for each module that uses it. Later stages see ordinary
// modules; they only need to know which names are visible in a block.
class SpecBlocks {
 public:
  // Reads all blocks, used or not, so that all their mistakes are reported.
  void Read(const Node& root, SpecParser& parser);
  // Adds the members of the block that the module names. Returns whether the module names a block.
  bool Use(const Node& map, size_t prefix, ModuleSpec& module, SpecParser& parser);

 private:
  struct Block {
    Node::Entry entry;
    std::vector<Located<std::string>> args = {};
    enum { kNew, kBusy, kGood, kWrong } state = kNew;
  };

  void Check(Block& block, SpecParser& parser);
  void ReadArgs(Block& block, SpecParser& parser);
  Block* Find(const Node::Entry& name, SpecParser& parser);
  // Reports a missing or unknown argument and returns nullopt.
  std::optional<std::vector<Named<VarSpec>>> Arguments(const Node& map, const Node& name,
                                                       const Block& block, SpecParser& parser);

  std::map<std::string_view, Block> blocks_;
  bool may_lack_ = false;  // some entries of `blocks` could not be read
  int checking_ = 0;       // blocks being checked; blocks used inside them are not expanded
  int depth_ = 0;          // blocks around the module that is being read
  size_t nodes_ = 0;       // nodes that blocks have added to the spec
};

}  // namespace shardinit
