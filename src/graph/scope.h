// Resolves the names that expressions of a spec may use.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "expr/expr.h"
#include "graph/explanation.h"
#include "spec/spec.h"

namespace shardinit {

// Resolves `vars` of the spec (each evaluated on first use), built-in variables, and the variables
// of the loops around the expression.
class SpecScope : public Scope {
  struct Var {
    const Named<VarSpec>* named = nullptr;  // null: the variable of a repeat
    enum { kNew, kBusy, kDone } state = kNew;
    std::optional<VarValue> value = {};  // none: it has an error, which was reported
    bool is_argument = false;            // names in its value are resolved outside the block
  };
  struct Local {
    std::string name;
    Var var;
  };

 public:
  // `lacks`: some variables may be unknown. `modules` define names of their own.
  SpecScope(const std::vector<Named<VarSpec>>& vars, bool lacks, const ModuleSpec& modules,
            Diagnostics& diagnostics);

  std::optional<Value> Find(const std::string& name, Diagnostics& diagnostics) const override;
  const VarValue* FindVariable(const std::string& name, Diagnostics& diagnostics) const override;
  bool IsBroken(const std::string& name) const override;
  // Evaluates a value that may be a list or the name of a list.
  std::optional<VarValue> Evaluate(const VarSpec& var, Diagnostics& diagnostics) const;
  std::vector<std::string> Names() const override;
  std::string PlaceOf(const std::string& name) const override;
  bool Has(const std::string& name) const;

  // Adds a built-in variable, unless one of `vars` has its name.
  void Define(const std::string& name, int64_t value);

  // Defines the variable of a `repeat` or a `for` for the lifetime of this object.
  class Loop {
   public:
    Loop(SpecScope& scope, const std::string& variable) : scope_(scope) {
      scope.locals_.push_back({variable, {nullptr, Var::kDone, VarValue{false, {int64_t{0}}}}});
    }
    ~Loop() { scope_.locals_.pop_back(); }
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;
    void Set(VarItem value) { scope_.locals_.back().var.value->items[0] = std::move(value); }

   private:
    SpecScope& scope_;
  };
  std::vector<std::string> LoopNames() const;

  // Defines variables of a module for the lifetime of this object. Reports a variable whose name is
  // already taken.
  class Variables {
   public:
    Variables(SpecScope& scope, const std::vector<Named<VarSpec>>& vars, Diagnostics& diagnostics);
    ~Variables() { scope_.locals_.resize(before_); }
    Variables(const Variables&) = delete;
    Variables& operator=(const Variables&) = delete;

   private:
    SpecScope& scope_;
    const size_t before_;
  };

  // Enters a block for the lifetime of this object. Hides the variables of modules and repeats,
  // except the block's arguments, which are computed before.
  class Block {
   public:
    Block(SpecScope& scope, const std::vector<Named<VarSpec>>& arguments, Diagnostics& diagnostics);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

   private:
    SpecScope& scope_;
    const size_t before_;
  };
  // Returns the number of enclosing blocks.
  size_t blocks() const { return blocks_.size() - 1; }

  // Resolves names as if only `blocks` blocks had been entered, for the lifetime of this object.
  // Used for values that are written outside a block but apply inside it.
  class OutsideBlocks {
   public:
    OutsideBlocks(SpecScope& scope, size_t blocks)
        : scope_(scope), begin_(scope.begin_), end_(scope.end_) {
      scope.begin_ = scope.blocks_[blocks];
      if (blocks + 1 < scope.blocks_.size()) scope.end_ = scope.blocks_[blocks + 1];
    }
    ~OutsideBlocks() {
      scope_.begin_ = begin_;
      scope_.end_ = end_;
    }
    OutsideBlocks(const OutsideBlocks&) = delete;
    OutsideBlocks& operator=(const OutsideBlocks&) = delete;

   private:
    SpecScope& scope_;
    const size_t begin_, end_;
  };

  // Replaces each `{i}` in a path such as `layers.{i}.w` by the number of the loop `i`.
  std::string WithNumbers(std::string path) const;

  // Returns whether some names may be unknown: variables, or names of an enclosing repeat.
  bool lacks() const { return lacks_; }
  void Lack(bool lacks) { lacks_ = lacks; }

  // Records every name used from now on in `uses`; null stops recording.
  void Trace(std::vector<Setting>* uses) { trace_ = uses; }

 private:
  // Returns `: a → b → a`; empty for `a → a` and for long chains.
  std::string ChainTo(const std::string& name) const;
  // Returns false if the name is already recorded.
  bool Note(const std::string& name, std::string text, const VarValue& value, Span span) const;
  bool IsDefined(const std::string& name) const;
  // Returns whether the expression is a name that is not known anywhere and may be meant as text.
  bool IsUnknownWord(const Expr& expr, Diagnostics& diagnostics) const;
  // Returns null if no variable of a module or repeat has this name.
  Local* FindLocal(const std::string& name) const;
  // Evaluates a variable on first use. Returns null if it is wrong.
  const VarValue* ValueOf(Var& var, Diagnostics& diagnostics) const;
  // Records the variable and, by evaluating it again, the variables that it uses.
  void Trace(const Var& var) const;

  bool lacks_;
  const ModuleSpec* modules_;
  mutable std::unordered_map<std::string, Var> vars_;
  mutable std::vector<const std::string*> chain_;  // variables being evaluated, outermost first
  std::vector<std::pair<std::string, VarValue>> defined_;
  mutable std::deque<Local> locals_;  // of modules and repeats, innermost last
  std::vector<size_t> blocks_ = {0};  // first local of each block; the first entry is for no block
  size_t begin_ = 0;                  // the first visible local
  size_t end_ = SIZE_MAX;             // one past the last visible local
  std::vector<Setting>* trace_ = nullptr;
};

// Returns the text of a number, a text, or a list of these: `[64, 128]`.
std::string FormatVariable(const VarValue& constant);

// Parses a path with expressions in braces. Their span is `place`.
std::optional<PathSpec> ParsePath(const std::string& text, Span place, Diagnostics& diagnostics);
// Returns nothing, after reporting an error, if a number in the path is wrong.
std::optional<std::string> EvaluatePath(const PathSpec& path, const Scope& names,
                                        Diagnostics& diagnostics);

}  // namespace shardinit
