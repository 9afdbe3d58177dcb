// Opens the sources of a spec, each when a tensor first takes its elements.
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
  // `names` are the spec's variables. If `open` is null, no source can be opened.
  SourceTable(const ModelSpec& spec, const SpecScope& names, SourceOpener open)
      : spec_(spec), names_(names), open_(std::move(open)) {}

  // Returns the tensor `tensor` of a source. If it does not exist, reports that at `source` and
  // returns null. Reports a bad source once.
  SourceTensorPtr Find(const Located<std::string>& source, const std::string& tensor,
                       Diagnostics& diagnostics);
  // Adds a note on where the spec names the source.
  void NotePlace(const std::string& source, Diagnostics& diagnostics) const;

  // Returns the sources that were opened.
  std::vector<SourcePin> pins() const;
  // Returns the declarations of the opened sources that are not pinned.
  std::vector<const Named<SourceSpec>*> unpinned() const;

 private:
  const Named<SourceSpec>* Declared(const std::string& name) const;
  std::shared_ptr<const SourceFolder> Open(const Named<SourceSpec>& source,
                                           Diagnostics& diagnostics) const;

  // Reports required tensors that the source lacks.
  bool HasAll(const Named<SourceSpec>& source, const SourceFolder& folder,
              Diagnostics& diagnostics) const;
  bool Has(const Named<SourceSpec>& source, const MustHaveSpec& wanted, const SourceFolder& folder,
           Diagnostics& diagnostics) const;

  const ModelSpec& spec_;
  const SpecScope names_;  // without variables of repeats
  const SourceOpener open_;
  std::unordered_map<std::string, std::shared_ptr<const SourceFolder>> folders_;  // null: wrong
};

}  // namespace shardinit
