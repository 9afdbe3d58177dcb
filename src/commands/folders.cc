#include "commands/folders.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/talk.h"
#include "base/text.h"
#include "checkpoint/alike.h"
#include "plan/reshard.h"
#include "report/text.h"

namespace shardinit {

void SayFolder(const TensorFolder& folder, bool reads_values) {
  const std::string path = Escape(folder.path());
  for (const std::string& warning : folder.warnings()) {
    Talk(fmt::format("shardinit: `{}`: {}\n", path, Escape(warning)));
  }
  for (const auto& [name, why] : folder.unread()) {
    Talk(fmt::format("shardinit: `{}`: {} {}: it is not read\n", path, Quote(name), Escape(why)));
  }
  if (!folder.others().empty()) {
    std::string text;
    for (const auto& [name, size] : folder.others()) {
      text += fmt::format("{}{} of {}", text.empty() ? "" : ", ",
                          Count(size.entries, "entry", "entries"), Quote(name));
    }
    TalkUnlessQuiet(fmt::format("shardinit: `{}`: not the model, and not read: {}\n", path, text));
  }
  if (reads_values && IsUntied(folder)) {
    Talk(fmt::format(
        "shardinit: `{}`: config.json ties `lm_head.weight` to the embedding, but the file has one "
        "that differs; both are read as they are\n",
        path));
  }
}

void RequireNoOverrides(const SpecOptions& spec) {
  if (!spec.HasOverrides()) return;
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` is a checkpoint, whose values are fixed", spec.request.path),
              kOverridesAreForSpecs);
}

Plan ShardFolder(const SpecRequest& request, const Plan& plan, const std::string& name,
                 const std::string& uneven, const std::string& hint_for_uneven) {
  if (request.sharding.empty()) {
    if (request.mesh.empty()) return plan;
    return OnMesh(plan, request.mesh, uneven == "chunk", hint_for_uneven);
  }
  Diagnostics diagnostics;
  Plan sharded = ShardAs(plan, fmt::format("{} as a spec", name), request.mesh, request.sharding,
                         uneven, diagnostics);
  Talk(Render(diagnostics.all()));
  return sharded;
}

TensorFolder OpenToCopy(const CopyOptions& options) {
  TensorFolder folder(options.from, options.part, TensorFolder::Record::kUse);
  RequireOutside(options.to, options.from, options.may_be_source);
  SayFolder(folder, options.reads_values);
  folder.RequireAllRead(options.dropped);
  return folder;
}

}  // namespace shardinit
