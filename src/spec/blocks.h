// Modules with arguments: `blocks` of a spec, and the modules that use them by `block` and `args`.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spec/spec.h"
#include "spec/yaml.h"

namespace shardinit {

class SpecParser;

// A module that uses a block has its members once more, read anew, so that nothing later on knows
// of blocks but the names that are visible in them.
class SpecBlocks {
 public:
  // Reads all blocks, used or not, so that their mistakes show.
  void Read(const Node& root, SpecParser& parser);
  // Gives the module the members of the block that it names; returns whether it names one.
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
  // Returns nothing, after a report, if an argument is missing or unknown.
  std::optional<std::vector<Named<VarSpec>>> Arguments(const Node& map, const Node& name,
                                                       const Block& block, SpecParser& parser);

  std::map<std::string_view, Block> blocks_;
  bool may_lack_ = false;  // there may be blocks that are not known
  int checking_ = 0;       // blocks that are being checked, in which others are only named
  int depth_ = 0;          // blocks around the module that is being read
  size_t nodes_ = 0;       // that blocks have added to the spec
};

}  // namespace shardinit
