#include "commands/folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/talk.h"
#include "base/text.h"
#include "checkpoint/alike.h"
#include "report/text.h"

namespace shardinit {
namespace {

const Tensor* FindTensor(const Plan& plan, std::string_view path) {
  const auto found = std::find_if(plan.graph.tensors.begin(), plan.graph.tensors.end(),
                                  [&](const Tensor& tensor) { return tensor.path() == path; });
  return found == plan.graph.tensors.end() ? nullptr : &*found;
}

// Transformers keeps a head that differs from the embedding, which silently unties them.
void SayIfUntied(const TensorFolder& folder) {
  const Plan& plan = folder.plan();
  if (folder.is_checkpoint() || plan.graph.config.empty()) return;
  const auto config = nlohmann::json::parse(plan.graph.config, nullptr, false);
  if (!config.is_object() || config.value("tie_word_embeddings", nlohmann::json()) != true) return;
  const Tensor* const head = FindTensor(plan, "lm_head.weight");
  const Tensor* const table = FindTensor(plan, "model.embed_tokens.weight");
  if (head == nullptr || table == nullptr) return;
  if (head->shape() == table->shape() && head->dtype() == table->dtype() &&
      AreEqual(folder, *head, *table)) {
    return;
  }
  Talk(fmt::format(
      "shardinit: `{}`: config.json ties `lm_head.weight` to the embedding, but the file has one "
      "that differs; both are read as they are\n",
      Escape(folder.path())));
}

}  // namespace

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
  if (reads_values) SayIfUntied(folder);
}

void RequireNoOverrides(const SpecOptions& spec) {
  if (!spec.HasOverrides()) return;
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` is a checkpoint, whose values are fixed", spec.request.path),
              kOverridesAreForSpecs);
}

TensorFolder OpenToCopy(const CopyOptions& options) {
  TensorFolder folder(options.from, options.part, TensorFolder::Record::kUse);
  RequireOutside(options.to, options.from, options.may_be_source);
  SayFolder(folder, options.reads_values);
  folder.RequireAllRead(options.dropped);
  return folder;
}

std::string ClaimOf(const TensorFolder& from, const std::string& layout) {
  return fmt::format("{}\n{}\n{}", ToHex(from.IdentifyAnywhere()), layout, from.part());
}

}  // namespace shardinit
