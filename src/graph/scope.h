// The names that expressions of a spec may use.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "expr/expr.h"
#include "graph/explanation.h"
#include "spec/spec.h"

namespace shardinit {

// `vars` of the spec, each evaluated when first asked for, and the variables
// of the repeats around the tensor at hand.
class SpecScope : public Scope {
 public:
  // `lacks`: there may be others.
  SpecScope(const std::vector<Named<ExprPtr>>& vars, bool lacks, Diagnostics& diagnostics);

  std::optional<Value> Find(const std::string& name, Diagnostics& diagnostics) const override;
  bool IsBroken(const std::string& name) const override;
  std::vector<std::string> Names() const override;
  bool Has(const std::string& name) const;

  std::vector<std::pair<std::string, int64_t>>& repeats() { return repeats_; }

  // Whether there may be names that are not known: of variables, or of a repeat around.
  bool lacks() const { return lacks_; }
  void Lack(bool lacks) { lacks_ = lacks; }

  // From now on notes every name that is used in `uses`; null: no more.
  void Trace(std::vector<Explanation::Setting>* uses) { trace_ = uses; }

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
  mutable std::vector<const std::string*> chain_;         // Variables that need each other.
  std::vector<std::pair<std::string, int64_t>> repeats_;  // Innermost last.
  std::vector<Explanation::Setting>* trace_ = nullptr;
};

}  // namespace shardinit
