// The names that expressions of a spec may use.
#pragma once

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
 public:
  // `lacks`: there may be variables that are not known.
  SpecScope(const std::vector<Named<ExprPtr>>& vars, bool lacks, Diagnostics& diagnostics);

  std::optional<Value> Find(const std::string& name, Diagnostics& diagnostics) const override;
  bool IsBroken(const std::string& name) const override;
  std::vector<std::string> Names() const override;
  bool Has(const std::string& name) const;

  // Adds a variable of the tool's own, unless one of `vars` has its name.
  void Define(const std::string& name, int64_t value);

  // Defines the variable of a `repeat` or a `for` for the lifetime of this object.
  class Loop {
   public:
    Loop(SpecScope& scope, const std::string& variable) : loops_(scope.loops_) {
      loops_.emplace_back(variable, 0);
    }
    ~Loop() { loops_.pop_back(); }
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;
    void Set(int64_t value) { loops_.back().second = value; }

   private:
    std::vector<std::pair<std::string, int64_t>>& loops_;
  };
  const std::vector<std::pair<std::string, int64_t>>& loops() const { return loops_; }

  // Replaces each `{i}` in a path, as in `layers.{i}.w`, by the number of the loop `i`.
  std::string WithNumbers(std::string path) const;

  // Returns whether there may be names that are not known: variables, or those of a repeat around.
  bool lacks() const { return lacks_; }
  void Lack(bool lacks) { lacks_ = lacks; }

  // Records every name that is used from now on in `uses`; null stops recording.
  void Trace(std::vector<Setting>* uses) { trace_ = uses; }

 private:
  struct Var {
    const Named<ExprPtr>* named;
    enum { kNew, kBusy, kDone } state = kNew;
    std::optional<Value> value = {};  // none: it has a mistake, which was reported
  };
  // Returns `: a → b → a`; empty for `a → a`, and if it would be long.
  std::string ChainTo(const std::string& name) const;
  // Returns false if the name is recorded already.
  bool Note(const std::string& name, std::string text, const Value& value, Span span) const;
  // Records the variable and, by evaluating it once more, those that it uses.
  void Trace(const Var& var) const;

  bool lacks_;
  mutable std::unordered_map<std::string, Var> vars_;
  mutable std::vector<const std::string*> chain_;  // variables being evaluated, outermost first
  std::vector<std::pair<std::string, int64_t>> defined_;
  std::vector<std::pair<std::string, int64_t>> loops_;  // innermost last
  std::vector<Setting>* trace_ = nullptr;
};

// Returns nothing if a number in the path is wrong, which is reported.
std::optional<std::string> EvaluatePath(const PathSpec& path, const Scope& names,
                                        Diagnostics& diagnostics);

}  // namespace shardinit
