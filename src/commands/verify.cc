#include "manifest/verify.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <optional>

#include "base/json.h"
#include "base/talk.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct Options {
  std::string folder;
  WorkOptions work;
  bool json = false;
};

ExitCode Run(const Options& options) {
  const int jobs = options.work.Jobs();
  VerifyResult result;
  {
    std::mutex mutex;
    std::optional<Progress> progress;
    const ProgressMode mode = options.work.Mode();
    result = Verify(options.folder, jobs, [&](int64_t bytes, int64_t total) {
      const std::lock_guard lock(mutex);
      if (!progress) progress.emplace(mode, "checking", total, options.json);
      progress->Update(bytes, "");
    });
  }
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("folder", options.folder);
    out.Member("intact", result.findings.empty()).Member("ranks", result.ranks);
    out.Member("boxes", result.boxes).Member("bytes", result.bytes);
    out.Key("findings").BeginArray(JsonWriter::kLines);
    for (const Finding& finding : result.findings) {
      out.BeginObject().Member("file", finding.file).Member("tensor", finding.tensor);
      out.Member("message", finding.message).EndObject();
    }
    out.EndArray().EndObject();
    Print(out.Finish());
  } else if (result.findings.empty()) {
    Print(fmt::format("{}: intact: {}, {}, {}\n", options.folder, Count(result.ranks, "rank"),
                      Count(result.boxes, "box", "boxes"), InBytes(result.bytes)));
  }
  if (result.findings.empty()) return ExitCode::kOk;
  for (const Finding& finding : result.findings) {
    Talk(fmt::format("{}: {}{}{}\n", finding.file, finding.tensor, finding.tensor.empty() ? "" : " ",
               finding.message));
  }
  Talk(fmt::format("shardinit: `{}` is damaged: {} finding{}\n", options.folder,
             result.findings.size(), result.findings.size() == 1 ? "" : "s"));
  return ExitCode::kDifferent;
}

}  // namespace

extern const Command kVerify = {
    .name = "verify",
    .summary = "Check every byte of a checkpoint against its digests",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<Options>();
      app.add_option("DIR", options->folder, "Folder of the checkpoint")->required();
      options->work.AddJobsTo(app, "read and hash");
      options->work.AddProgressTo(app);
      AddJson(app, &options->json);
      return [options] { return Run(*options); };
    },
};

}  // namespace shardinit
