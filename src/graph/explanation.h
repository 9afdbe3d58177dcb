// Explains one tensor: collects the places in the spec and on the command line that determined it.
// The graph does not store places, so each pass notes them while it processes the tensor.
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

// A written value: `text` is the source text at `span`, which has no source for a default.
struct Setting {
  std::string name, text, value;
  Span span;
};

struct Explanation {
  // A rule, pattern or language that was tried on one dimension of the tensor.
  struct TriedRule {
    size_t dimension;
    Setting rule;         // name: logical axis, pattern or language; text: the rule itself
    std::string outcome;  // empty: the rule settled the dimension
  };

  // One way to shard the tensor and its block while all other blocks stay the same.
  struct Alternative {
    PartitionSpec partition;
    double seconds, padding, memory;  // cost of the whole model (autoshard/cost.h)
    bool fits;                        // within the memory of a rank
  };

  // One place where a layout stores elements of a drawn tensor.
  struct Place {
    std::string layout, path;          // path of the stored tensor
    std::shared_ptr<const View> view;  // null: the layout omits it
    int64_t elements;                  // number of the drawn tensor's elements in the stored one
    Span span;
  };

  // A matching tensor that is left out because a `when` is 0.
  struct LeftOut {
    std::string path;
    Setting when;
  };

  std::string pattern;  // a glob; the first tensor whose path matches it is explained

  std::optional<size_t> tensor;     // index among the drawn or the stored tensors; none: no match
  std::optional<LeftOut> left_out;  // the first match that is left out before `tensor`
  std::vector<Setting> conditions;  // each `when` that is true here, outermost first
  Span place;                       // of the tensor's name
  std::vector<Setting> variables;   // all variables used by the tensor's expressions

  std::vector<Setting> dimensions;  // name: logical axis; text: expression; value: extent
  Span dtype, key, seed, engine;
  std::vector<Setting> initializers;  // from the tensor's own to the built-in one
  std::vector<Setting> arguments;
  std::vector<Setting> multipliers;
  Setting fans;                          // `fans` or axes given in the spec
  std::vector<ComputationStep> working;  // steps from the arguments to the distribution

  Span shard, stage;
  std::vector<TriedRule> rules;
  std::string block;                      // kind of the tensor's block, if a language compared ways
  std::vector<Alternative> alternatives;  // fitting ones first, then by seconds
  std::vector<Setting> mesh;              // axes that shard the tensor
  std::vector<Setting> pins;              // a mesh axis, and the indices on it that hold the tensor

  // The places of a drawn tensor in the chosen layout or in all layouts. If no drawn tensor
  // matches, the first matching stored tensor.
  std::vector<Place> places;
  Span view;                            // span of a stored tensor's view
  std::unique_ptr<Explanation> stored;  // with a layout: explanation of a stored tensor
};

// A true `when` and the number of blocks around it in the spec.
struct Condition {
  const Expr* when;
  size_t blocks;
};

// Collects the passes' notes. Passes call it even if no explanation was requested.
class Recorder {
 public:
  // If `notes` is null, discards all notes. `names` is the scope that the passes use.
  Recorder(Explanation* notes, SpecScope& names) : notes_(notes), names_(names) {}

  // Starts taking notes if this is the first tensor that matches. `conditions` are the true
  // conditions, outermost first.
  void Begin(size_t tensor, const std::string& path, const Span& place,
             std::span<const Condition> conditions) {
    if (notes_ != nullptr) Find(tensor, path, place, conditions);
  }
  // Resumes taking notes in a later pass, if Begin() found this tensor.
  void Resume(size_t tensor) {
    if (notes_ != nullptr && notes_->tensor == tensor) SetTaking(true);
  }
  void End() {
    if (is_taking_) SetTaking(false);
  }

  bool is_taking() const { return is_taking_; }
  // Calls `note` with the explanation if the current tensor is the explained one.
  template <typename F>
  void Note(F note) const {
    if (is_taking_) note(*notes_);
  }

  // Notes a tensor or module that is left out because a `when` is 0.
  template <typename T>
  void LeaveOut(const std::string& path, const T& spec) {
    if (notes_ != nullptr) NoteLeftOut(path, spec, *spec.when);
  }

 private:
  bool IsWanted(const std::string& path) const;
  void Find(size_t tensor, const std::string& path, const Span& place,
            std::span<const Condition> conditions);
  void SetTaking(bool takes);  // also starts or stops recording variables
  void NoteLeftOut(const std::string& path, const TensorSpec& tensor, const Expr& when);
  void NoteLeftOut(const std::string& path, const ModuleSpec& module, const Expr& when);

  Explanation* const notes_;
  SpecScope& names_;
  bool is_taking_ = false;
  int64_t left_out_budget_ = 100'000;  // number of modules to search for a message
};

// Notes where the layout stores the explained tensor.
void NotePlaces(const std::string& layout, const WrittenTensors& stored, Explanation& notes);

}  // namespace shardinit
