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

// `vars` of the spec, each evaluated when first asked for, the tool's own variables, and those that
// count in the loops around what is at hand.
class SpecScope : public Scope {
 public:
  // `lacks`: there may be others.
  SpecScope(const std::vector<Named<ExprPtr>>& vars, bool lacks, Diagnostics& diagnostics);

  std::optional<Value> Find(const std::string& name, Diagnostics& diagnostics) const override;
  bool IsBroken(const std::string& name) const override;
  std::vector<std::string> Names() const override;
  bool Has(const std::string& name) const;

  // A variable of the tool's own, unless one of `vars` has its name.
  void Define(const std::string& name, int64_t value);

  // A variable that counts, as long as this lives: of a `repeat`, of a `for`.
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

  // `layers.{i}.w` with the number of the loop `i` in its place.
  std::string WithNumbers(std::string path) const;

  // Whether there may be names that are not known: of variables, or of a repeat around.
  bool lacks() const { return lacks_; }
  void Lack(bool lacks) { lacks_ = lacks; }

  // From now on notes every name that is used in `uses`; null: no more.
  void Trace(std::vector<Setting>* uses) { trace_ = uses; }

 private:
  struct Var {
    const Named<ExprPtr>* named;
    enum { kNew, kBusy, kDone } state = kNew;
    std::optional<Value> value = {};  // None: a mistake, which was reported.
  };
  // `: a → b → a`; empty for `a → a` and where it would be long.
  std::string ChainTo(const std::string& name) const;
  // False: it was there already.
  bool Note(const std::string& name, std::string text, const Value& value, Span span) const;
  // The variable, and by evaluating it once more those that it is made of.
  void Trace(const Var& var) const;

  bool lacks_;
  mutable std::unordered_map<std::string, Var> vars_;
  mutable std::vector<const std::string*> chain_;  // Variables that need each other.
  std::vector<std::pair<std::string, int64_t>> defined_;
  std::vector<std::pair<std::string, int64_t>> loops_;  // Innermost last.
  std::vector<Setting>* trace_ = nullptr;
};

// Nothing if a number in it is wrong, which is reported.
std::optional<std::string> EvaluatePath(const PathSpec& path, const Scope& names,
                                        Diagnostics& diagnostics);

}  // namespace shardinit
