// `stage`: which ranks hold a tensor at all.
#pragma once

#include <unordered_map>
#include <vector>

#include "graph/building.h"

namespace shardinit {

class StageBinder {
 public:
  StageBinder(Building& building, const Mesh& mesh);

  // Called while the scope has the numbers of the repeats around. A mistake in the names of axes is
  // reported once for all tensors that have the stage.
  std::vector<Pin> Bind(const StageSpec& stage);

 private:
  // Adds the sizes of the mesh as `mesh_AXIS`: stages may depend on them, values may not.
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
    int AxisOf(const std::string& name) const;  // -1: no mesh axis, or a variable of the spec

    const SpecScope& names_;
    const Mesh& mesh_;
  };

  Building& building_;
  const Mesh& mesh_;
  const MeshScope scope_;
  std::unordered_map<const StageSpec*, std::vector<int>> axes_;  // -1: no such axis
};

}  // namespace shardinit
