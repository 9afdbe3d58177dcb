// The names that expressions of a spec may use.
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

// Resolves `vars` of the spec (each evaluated on first use), the tool's own variables, and the
// variables of the loops around the expression.
class SpecScope : public Scope {
  struct Var {
    const Named<VarSpec>* named = nullptr;  // null: the variable of a repeat
    enum { kNew, kBusy, kDone } state = kNew;
    std::optional<VarValue> value = {};  // none: it has a mistake, which was reported
    bool is_argument = false;            // what it is made of is known around the block
  };
  struct Local {
    std::string name;
    Var var;
  };

 public:
  // `lacks`: there may be variables that are not known. `modules` have names of their own.
  SpecScope(const std::vector<Named<VarSpec>>& vars, bool lacks, const ModuleSpec& modules,
            Diagnostics& diagnostics);

  std::optional<Value> Find(const std::string& name, Diagnostics& diagnostics) const override;
  const VarValue* FindVariable(const std::string& name, Diagnostics& diagnostics) const override;
  bool IsBroken(const std::string& name) const override;
  // Evaluates what may be a list, or the name of one.
  std::optional<VarValue> Evaluate(const VarSpec& var, Diagnostics& diagnostics) const;
  std::vector<std::string> Names() const override;
  std::string PlaceOf(const std::string& name) const override;
  bool Has(const std::string& name) const;

  // Adds a variable of the tool's own, unless one of `vars` has its name.
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

  // Defines variables of a module for the lifetime of this object. One that has the name of
  // another is reported.
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

  // Enters a block for the lifetime of this object: of the variables of modules and repeats, only
  // its arguments are known, which are computed before.
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
  // The number of blocks around.
  size_t blocks() const { return blocks_.size() - 1; }

  // For the lifetime of this object, names are those outside of all but `blocks` blocks, as for
  // what is written around a block and holds in it.
  class Outside {
   public:
    Outside(SpecScope& scope, size_t blocks)
        : scope_(scope), begin_(scope.begin_), end_(scope.end_) {
      scope.begin_ = scope.blocks_[blocks];
      if (blocks + 1 < scope.blocks_.size()) scope.end_ = scope.blocks_[blocks + 1];
    }
    ~Outside() {
      scope_.begin_ = begin_;
      scope_.end_ = end_;
    }
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    SpecScope& scope_;
    const size_t begin_, end_;
  };

  // Replaces each `{i}` in a path, as in `layers.{i}.w`, by the number of the loop `i`.
  std::string WithNumbers(std::string path) const;

  // Returns whether there may be names that are not known: variables, or those of a repeat around.
  bool lacks() const { return lacks_; }
  void Lack(bool lacks) { lacks_ = lacks; }

  // Records every name that is used from now on in `uses`; null stops recording.
  void Trace(std::vector<Setting>* uses) { trace_ = uses; }

 private:
  // Returns `: a → b → a`; empty for `a → a`, and if it would be long.
  std::string ChainTo(const std::string& name) const;
  // Returns false if the name is recorded already.
  bool Note(const std::string& name, std::string text, const VarValue& value, Span span) const;
  bool IsDefined(const std::string& name) const;
  // Tells whether an expression is a name that is known nowhere, which may be meant as text.
  bool IsUnknownWord(const Expr& expr, Diagnostics& diagnostics) const;
  // Returns null if no variable of a module or a repeat has the name.
  Local* FindLocal(const std::string& name) const;
  // Evaluates a variable on first use; returns null if it is wrong.
  const VarValue* ValueOf(Var& var, Diagnostics& diagnostics) const;
  // Records the variable and, by evaluating it once more, those that it uses.
  void Trace(const Var& var) const;

  bool lacks_;
  const ModuleSpec* modules_;
  mutable std::unordered_map<std::string, Var> vars_;
  mutable std::vector<const std::string*> chain_;  // variables being evaluated, outermost first
  std::vector<std::pair<std::string, VarValue>> defined_;
  mutable std::deque<Local> locals_;  // of modules and repeats, innermost last
  std::vector<size_t> blocks_ = {0};  // where those of each block begin; first, of none
  size_t begin_ = 0;                  // the first of the locals that are known
  size_t end_ = SIZE_MAX;             // one past the last
  std::vector<Setting>* trace_ = nullptr;
};

// Returns the text of a number, of text, or of a list of these: `[64, 128]`.
std::string FormatVariable(const VarValue& constant);

// Reads a path with expressions in braces, all of which stand at `place`.
std::optional<PathSpec> ParsePath(const std::string& text, Span place, Diagnostics& diagnostics);
// Returns nothing if a number in the path is wrong, which is reported.
std::optional<std::string> EvaluatePath(const PathSpec& path, const Scope& names,
                                        Diagnostics& diagnostics);

}  // namespace shardinit
