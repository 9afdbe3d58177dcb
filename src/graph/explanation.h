// The explanation of one tensor: the places in the spec and on the command line that decided it.
// The graph itself knows no places, so passes note them while they are at that tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/source.h"
#include "init/fans.h"
#include "sharding/partition.h"

namespace shardinit {

class Expr;
class SpecScope;
struct ModuleSpec;
struct TensorSpec;
struct View;
struct WrittenTensors;

// A value that was written: `text` as it stands at `span`, which has no source if it is a default.
struct Setting {
  std::string name, text, value;
  Span span;
};

struct Explanation {
  // A rule, a pattern or a language that was tried on one dimension of the tensor.
  struct Trial {
    size_t dimension;
    Setting rule;         // name: logical axis, pattern or language; text: the rule itself
    std::string outcome;  // empty: the rule settled the dimension
  };

  // One way to shard the tensor together with its block, while all other blocks stay as they are.
  struct Alternative {
    PartitionSpec partition;
    double seconds, padding, memory;  // cost of the whole model (autoshard/cost.h)
    bool fits;                        // within the memory of a rank
  };

  // One place where a layout puts a drawn tensor.
  struct Place {
    std::string layout, path;          // path of the stored tensor
    std::shared_ptr<const View> view;  // null: the layout omits it
    int64_t elements;                  // elements of the drawn tensor that the stored one holds
    Span span;
  };

  // A tensor that matches, but that a `when` of 0 leaves out.
  struct LeftOut {
    std::string path;
    Setting when;
  };

  std::string pattern;  // a glob; the first tensor whose path matches it is explained

  std::optional<size_t> tensor;     // index among the drawn or the stored tensors; none: no match
  std::optional<LeftOut> left_out;  // the first match that is left out, unless it comes later
  std::vector<Setting> conditions;  // each `when` that is true here, outermost first
  Span place;                       // of the tensor's name
  std::vector<Setting> variables;   // all variables that the tensor's expressions use

  std::vector<Setting> dimensions;  // name: logical axis; text: expression; value: extent
  Span dtype, key, seed, engine;
  std::vector<Setting> initializers;  // from the tensor's own to the tool's
  std::vector<Setting> arguments;
  std::vector<Setting> multipliers;
  Setting fans;                  // `fans` or axes that the spec gives
  std::vector<Working> working;  // steps from the arguments to the distribution

  Span shard, stage;
  std::vector<Trial> rules;
  std::string block;                      // kind of the tensor's block, if a language compared ways
  std::vector<Alternative> alternatives;  // those that fit first, then by seconds
  std::vector<Setting> mesh;              // axes that shard the tensor
  std::vector<Setting> pins;              // a mesh axis, and the indices on it that hold the tensor

  // The places of a drawn tensor, in the chosen layout or in all. If no drawn tensor matches, this
  // has the first stored tensor that does.
  std::vector<Place> places;
  Span view;                            // span of a stored tensor's view
  std::unique_ptr<Explanation> stored;  // with a layout: explanation of a tensor that it stores
};

// A `when` that is true, and the number of blocks around the place where it is written.
struct Condition {
  const Expr* when;
  size_t blocks;
};

// Through this passes take notes, whether anybody asked for an explanation or not.
class Recorder {
 public:
  // Takes no notes if `notes` is null, since nobody asked. `names` are those of the passes.
  Recorder(Explanation* notes, SpecScope& names) : notes_(notes), names_(names) {}

  // Begins to take notes if the tensor is the first that matches. `conditions` are those that are
  // true here, outermost first.
  void Begin(size_t tensor, const std::string& path, const Span& place,
             std::span<const Condition> conditions) {
    if (notes_ != nullptr) Find(tensor, path, place, conditions);
  }
  // Begins again, in a later pass, if Begin() found this tensor.
  void Resume(size_t tensor) {
    if (notes_ != nullptr && notes_->tensor == tensor) Take(true);
  }
  void End() {
    if (is_taking_) Take(false);
  }

  bool is_taking() const { return is_taking_; }
  // Calls `note` with the explanation if the tensor at hand is the one that is explained.
  template <typename F>
  void Note(F note) const {
    if (is_taking_) note(*notes_);
  }

  // Notes a tensor or a module that a `when` of 0 leaves out.
  template <typename T>
  void LeaveOut(const std::string& path, const T& spec) {
    if (notes_ != nullptr) NoteLeftOut(path, spec, *spec.when);
  }

 private:
  bool IsWanted(const std::string& path) const;
  void Find(size_t tensor, const std::string& path, const Span& place,
            std::span<const Condition> conditions);
  void Take(bool takes);  // also of the variables that expressions use
  void NoteLeftOut(const std::string& path, const TensorSpec& tensor, const Expr& when);
  void NoteLeftOut(const std::string& path, const ModuleSpec& module, const Expr& when);

  Explanation* const notes_;
  SpecScope& names_;
  bool is_taking_ = false;
  int64_t left_out_budget_ = 100'000;  // modules to search for a message
};

// Notes where the layout puts the drawn tensor that is explained.
void NotePlaces(const std::string& layout, const WrittenTensors& stored, Explanation& notes);

}  // namespace shardinit
