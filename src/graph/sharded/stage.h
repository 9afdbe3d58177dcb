// Binds `stage`: the ranks that hold a tensor.
#pragma once

#include <unordered_map>
#include <vector>

#include "graph/building.h"

namespace shardinit {

class StageBinder {
 public:
  StageBinder(Building& building, const Mesh& mesh);

  // Must be called with the numbers of the enclosing repeats in scope. Reports an error in axis
  // names once for all tensors of the stage.
  std::vector<Pin> Bind(const StageSpec& stage);

 private:
  // Adds the sizes of the mesh as `mesh_AXIS`. Stages may depend on them; values must not.
  class MeshScope : public Scope {
   public:
    MeshScope(const SpecScope& names, const Mesh& mesh) : names_(names), mesh_(mesh) {}
    std::optional<Value> Find(const std::string& name, Diagnostics& diagnostics) const override;
    const VarValue* FindVariable(const std::string& name, Diagnostics& diagnostics) const override {
      return names_.FindVariable(name, diagnostics);
    }
    bool IsBroken(const std::string& name) const override { return names_.IsBroken(name); }
    std::vector<std::string> Names() const override;

   private:
    int AxisOf(const std::string& name) const;  // -1: not a mesh axis, or defined by the spec

    const SpecScope& names_;
    const Mesh& mesh_;
  };

  Building& building_;
  const Mesh& mesh_;
  const MeshScope scope_;
  std::unordered_map<const StageSpec*, std::vector<int>> axes_;  // -1: no such axis
};

}  // namespace shardinit
