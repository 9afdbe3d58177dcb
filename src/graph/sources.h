// The sources of a spec: each is opened when a tensor first takes elements of it.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/diagnostics.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "spec/spec.h"
#include "tensor/source.h"

namespace shardinit {

class SourceTable {
 public:
  // `names` are the spec's variables. `open` may be null: then nothing can be opened.
  SourceTable(const ModelSpec& spec, const SpecScope& names, SourceOpener open)
      : spec_(spec), names_(names), open_(std::move(open)) {}

  // Returns the tensor that a source has under a name; null after reporting, at `place`, that there
  // is none. What is wrong with a source is reported once.
  SourceTensorPtr Find(const Located<std::string>& source, const std::string& tensor,
                       Diagnostics& diagnostics);
  // Notes where the spec names the source.
  void NotePlace(const std::string& source, Diagnostics& diagnostics) const;

  // Returns the sources that were opened.
  std::vector<SourcePin> pins() const;
  // Returns where the spec declares those of them that are not pinned.
  std::vector<const Named<SourceSpec>*> unpinned() const;

 private:
  const Named<SourceSpec>* Declared(const std::string& name) const;
  std::shared_ptr<const SourceFolder> Open(const Named<SourceSpec>& source,
                                           Diagnostics& diagnostics) const;

  // Reports what the source must have and has not.
  bool HasAll(const Named<SourceSpec>& source, const SourceFolder& folder,
              Diagnostics& diagnostics) const;
  bool Has(const Named<SourceSpec>& source, const MustHaveSpec& wanted, const SourceFolder& folder,
           Diagnostics& diagnostics) const;

  const ModelSpec& spec_;
  const SpecScope names_;  // without those of repeats
  const SourceOpener open_;
  std::unordered_map<std::string, std::shared_ptr<const SourceFolder>> folders_;  // null: wrong
};

}  // namespace shardinit
