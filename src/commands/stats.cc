#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/colour.h"
#include "base/glob.h"
#include "base/json.h"
#include "base/result_file.h"
#include "base/text.h"
#include "commands/command.h"
#include "commands/folders.h"
#include "commands/options.h"
#include "commands/stats_page.h"
#include "export/export.h"
#include "report/text.h"
#include "stats/measure.h"

namespace shardinit {
namespace {

struct StatsOptions {
  explicit StatsOptions(CLI::App& app) {
    TakesUrl(app.add_option("SPEC|DIR", path,
                            "Model spec, or `-` for standard input; or folder of tensors"))
        ->required();
    AddText(app, "--spec", "SPEC", &spec.request.path,
            "Test a folder's values against this spec, and report which are still initial");
    spec.AddOverridesTo(app);
    spec.AddLayoutTo(app, "Measure the tensors that this layout of the spec stores");
    AddOnly(app, &only);
    AddPartOfFile(app, &part);
    work.AddJobsTo(app, "generate or read, and count");
    work.AddProgressTo(app);
    AddText(app, "--html", "FILE", &html, "Also write a page of pictures: histograms, quantiles");
    AddForce(app, &force);
    AddJson(app, &json);
  }

  std::string path;
  SpecOptions spec;  // its path is the value of --spec
  WorkOptions work;
  std::string only, part;
  std::string html;  // a file; empty: no page
  bool force = false, json = false;
};

// The sign of a NaN depends on the processor.
std::string Short(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.6g}", value); }

// Writes null for a sum of f64 elements that does not fit in an f64.
void WriteIfFinite(const char* key, double value, JsonWriter& out) {
  out.MemberOrNull(key, std::isfinite(value), value);
}

// A spec to compare with a folder, and the comparison of their tensors.
struct AgainstSpec {
  Plan plan;
  Comparison comparison;
};

// Returns the spec's tensors that the folder lacks.
std::vector<std::string> MissingOf(const AgainstSpec& against, const std::string& only) {
  std::set<const Tensor*> there;
  for (const ComparedTensor& compared : against.comparison.compared) {
    there.insert(compared.tensor);
  }
  std::vector<std::string> missing;
  for (const Tensor& tensor : against.plan.graph.tensors) {
    const bool is_wanted = only.empty() || PathMatches(only, tensor.path());
    if (is_wanted && there.count(&tensor) == 0) missing.push_back(std::string(tensor.path()));
  }
  return missing;
}

struct StatsResults {
  std::vector<Measurement> measured;
  bool is_folder = false;
  std::string spec;                     // the name of --spec's model; empty: without --spec
  std::vector<std::string> missing;     // the spec's tensors that the folder lacks
  std::vector<std::string> other_form;  // the folder's tensors with another type or shape
  std::vector<std::string> unknown;     // the folder's tensors that the spec lacks
};

std::string InJson(const StatsResults& all) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Key("tensors").BeginArray(JsonWriter::kLines);
  for (const Measurement& m : all.measured) {
    out.BeginObject()
        .Member("path", m.tensor->path())
        .Member("dtype", InfoOf(m.tensor->dtype()).name);
    out.Member("shape", m.tensor->shape_in_numbers()).Member("init", InitText(*m.declaring));
    out.Member("not_finite", m.not_finite());
    out.Member("nan", m.nans).Member("infinite", m.infinities);
    if (all.is_folder && IsOfSource(*m.tensor)) {
      out.MemberOrNull("zero_rows", m.zero_rows.has_value(), m.zero_rows.value_or(0));
    }
    if (m.moments.count > 0) {
      WriteIfFinite("mean", m.moments.mean, out);
      WriteIfFinite("std", m.moments.std(), out);
      out.Member("min", m.moments.min).Member("max", m.moments.max);
      out.Key("quantiles").BeginArray();
      for (size_t i = 0; i < m.quantiles.size(); ++i) {
        out.Value(std::array{kQuantiles[i], m.quantiles[i]});
      }
      out.EndArray().Member("histogram", m.histogram);
    }
    if (m.declared) {
      out.Key("declared").BeginObject().Member("mean", m.declared->mean);
      out.Member("std", m.declared->std).EndObject();
    } else {
      out.Member("declared", nullptr);
    }
    if (m.fit) {
      out.Key("ks").BeginObject().Member("distance", m.fit->distance);
      out.Member("probability", m.fit->probability).EndObject();
    } else {
      out.Member("ks", nullptr);
    }
    out.Member("as_declared", !m.is_wrong);
    if (!all.spec.empty()) {
      out.MemberOrNull("is_initial", m.is_initial.has_value(), m.is_initial.value_or(false));
    }
    out.EndObject();
  }
  out.EndArray();
  if (!all.spec.empty()) {
    out.Member("missing", all.missing).Member("other_form", all.other_form);
    out.Member("not_in_spec", all.unknown);
  }
  out.EndObject();
  return out.Finish();
}

// Returns `2 NaN, 1 infinite`, without counts of zero.
std::string NotFinite(const Measurement& m) {
  const std::string nans = m.nans > 0 ? Grouped(m.nans) + " NaN" : "";
  const std::string infinities = m.infinities > 0 ? Grouped(m.infinities) + " infinite" : "";
  return nans + (nans.empty() || infinities.empty() ? "" : ", ") + infinities;
}

std::string Verdict(const Measurement& m) {
  if (m.is_initial == true) return Paint(Role::kWarning, "initial");
  if (m.is_wrong) return Paint(Role::kBad, "no");
  if (m.not_finite() > 0) return Paint(Role::kWarning, "-, " + NotFinite(m));
  // Zeros deserve a warning only in a folder: a spec declares its zeros.
  if (m.zero_rows > 0 && IsOfSource(*m.tensor)) {
    return Paint(Role::kWarning, fmt::format("-, {} of zeros", Count(*m.zero_rows, "row")));
  }
  return m.declared ? Paint(Role::kGood, "yes") : "-";
}

std::string InTable(const std::vector<Measurement>& results) {
  std::vector<std::vector<std::string>> rows = {
      {"path", "mean", "std", "min", "median", "max", "KS distance", "probability", "as declared"}};
  for (const Measurement& m : results) {
    rows.push_back({std::string(m.tensor->path()), Short(m.moments.mean), Short(m.moments.std()),
                    Short(m.moments.min), Short(m.quantiles[kMedian]), Short(m.moments.max),
                    m.fit ? fmt::format("{:.3g}", m.fit->distance) : "-",
                    m.fit ? fmt::format("{:.3g}", m.fit->probability) : "-", Verdict(m)});
  }
  return Table(rows, {false, true, true, true, true, true, true, true, true});
}

// Shows one tensor with all its measurements.
std::string InFull(const Measurement& m) {
  const Tensor& tensor = *m.tensor;
  std::string text = fmt::format("{}: {} {}, {}\n\n", Paint(Role::kStrong, Escape(tensor.path())),
                                 InfoOf(tensor.dtype()).name, InShape(tensor.shape_in_numbers()),
                                 InitText(*m.declaring));
  const auto declared = [&](double DeclaredMoments::*member) {
    return m.declared ? Short((*m.declared).*member) : "";
  };
  std::vector<std::vector<std::string>> rows = {
      {"", "measured", m.declared ? "declared" : ""},
      {"mean", Short(m.moments.mean), declared(&DeclaredMoments::mean)},
      {"std", Short(m.moments.std()), declared(&DeclaredMoments::std)},
      {"min", Short(m.moments.min)}};
  for (size_t i = 0; i < m.quantiles.size(); ++i) {
    rows.push_back({fmt::format("{:g}%", 100 * kQuantiles[i]), Short(m.quantiles[i])});
  }
  rows.push_back({"max", Short(m.moments.max)});
  if (m.nans > 0) rows.push_back({"NaN", Grouped(m.nans)});
  if (m.infinities > 0) rows.push_back({"infinite", Grouped(m.infinities)});
  if (m.zero_rows > 0) rows.push_back({"rows of zeros", Grouped(*m.zero_rows)});
  if (m.fit) {
    rows.push_back({"KS distance", fmt::format("{:.3g}", m.fit->distance)});
    rows.push_back({"probability", fmt::format("{:.3g}", m.fit->probability)});
  }
  text += Table(rows, {false, true, true});
  if (m.moments.max > m.moments.min) {
    text += "\n" + Bars(m.histogram, m.moments.min, m.moments.max, BarStyleOfOutput());
  }
  return text;
}

std::string DescribeMismatch(const Measurement& m) {
  std::string why;
  if (m.not_finite() > 0) {
    why = fmt::format("{} {} NaN or infinite ({})", Count(m.not_finite(), "element"),
                      m.not_finite() == 1 ? "is" : "are", NotFinite(m));
  } else if (m.fit) {
    why = fmt::format(
        "chance alone would give values this far from it (KS distance {:.3g}) with "
        "probability {:.3g}",
        m.fit->distance, m.fit->probability);
  } else {
    why = fmt::format("its values go from {} to {}", m.moments.min, m.moments.max);
  }
  return fmt::format(
      "{}: {} ({}): {}\n", Paint(Role::kStrong, Escape(m.tensor->path()), Channel::kTalk),
      Paint(Role::kBad, "is not as declared", Channel::kTalk), InitText(*m.tensor), why);
}

const ResultKind kStatsPage = {
    "--html",
    "page",
    {"<!DOCTYPE html>\n", "<meta name=\"generator\" content=\"shardinit stats\">"}};

// Returns a line that names the first tensors, or an empty text if `names` is empty. `one` and
// `several` describe the tensors.
std::string Named(const std::vector<std::string>& names, std::string_view one,
                  std::string_view several) {
  if (names.empty()) return {};
  constexpr size_t kMostNamed = 8;
  const auto count = std::ssize(names);
  std::string text = fmt::format(
      "{} {}: {}", Count(count, "tensor"), count == 1 ? one : several,
      fmt::join(names.begin(), names.begin() + std::min<int64_t>(count, kMostNamed), ", "));
  text = Escape(text);
  if (names.size() > kMostNamed) text += fmt::format(" and {} more", Grouped(count - kMostNamed));
  return text + "\n";
}

// Reports unusual tensors of a folder.
std::string DescribeUnusual(const StatsResults& all) {
  std::vector<std::string> initial, constant;
  for (const Measurement& m : all.measured) {
    if (m.is_initial == true) {
      initial.push_back(std::string(m.tensor->path()));
    } else if (IsOfSource(*m.tensor) && m.moments.count > 1 && m.not_finite() == 0 &&
               m.moments.min == m.moments.max) {
      constant.push_back(fmt::format("{} ({})", m.tensor->path(), Short(m.moments.min)));
    }
  }
  std::string text = Named(initial, fmt::format("is exactly as {} initializes it", all.spec),
                           fmt::format("are exactly as {} initializes them", all.spec));
  if (!all.spec.empty() && initial.empty()) {
    text = fmt::format("no tensor is exactly as {} initializes it\n", all.spec);
  }
  text += Named(constant, "has one number in all its elements",
                "have one number each in all their elements");
  text += Named(all.other_form, fmt::format("is of another type or shape in {}", all.spec),
                fmt::format("are of another type or shape in {}", all.spec));
  text += Named(all.unknown, fmt::format("is not in {}", all.spec),
                fmt::format("are not in {}", all.spec));
  text += Named(all.missing, fmt::format("of {} is not in the folder", all.spec),
                fmt::format("of {} are not in the folder", all.spec));
  return text.empty() ? "" : "\n" + text;
}

// Loads the spec of --spec and compares the folder with it. Later results point into `*against`.
void CompareWithSpec(const StatsOptions& options, AgainstSpec* against) {
  against->plan = options.spec.Load();
  WorkCounters counters;
  Progress progress(options.work.Mode(), "comparing", against->plan.bytes, options.json);
  against->comparison = Compare(
      options.path, against->plan, options.work.Workers(false),
      [&](const WorkCounters& c) { progress.Update(c.hashed_bytes / 2); }, &counters, options.only,
      options.part);
}

// Returns the tensor that declares each tensor. Adds tensors that the spec lacks or has in another
// form to `all`.
std::vector<const Tensor*> FindDeclarations(const std::vector<const Tensor*>& tensors,
                                            const AgainstSpec& against, StatsResults* all) {
  std::map<std::string_view, const ComparedTensor*> by_name;
  for (const ComparedTensor& compared : against.comparison.compared) {
    by_name.emplace(compared.name, &compared);
  }
  std::vector<const Tensor*> declaring;
  for (const Tensor* tensor : tensors) {
    const auto found = by_name.find(tensor->path());
    declaring.push_back(tensor);
    if (found == by_name.end()) {
      all->unknown.push_back(std::string(tensor->path()));
    } else if (found->second->outcome == ComparedTensor::Outcome::kOtherForm) {
      all->other_form.push_back(std::string(tensor->path()));
    } else {
      declaring.back() = found->second->tensor;
    }
  }
  return declaring;
}
// Records whether the tensors with the same form in the spec have the spec's values.
void MarkInitial(const AgainstSpec& against, std::vector<Measurement>* results) {
  std::set<const Tensor*> equal;
  for (const ComparedTensor& compared : against.comparison.compared) {
    if (compared.outcome == ComparedTensor::Outcome::kEqual) equal.insert(compared.tensor);
  }
  for (Measurement& m : *results) {
    if (m.declaring != m.tensor) m.is_initial = equal.count(m.declaring) != 0;
  }
}

// Rejects options that do not go together.
void RequireFitting(const StatsOptions& options, bool is_folder) {
  const bool has_spec = !options.spec.request.path.empty();
  if (!is_folder && has_spec) {
    throw Usage(
        fmt::format("`--spec` needs a folder of tensors, but `{}` is not one", options.path));
  }
  if (is_folder && !has_spec && options.spec.HasOverrides()) {
    throw Usage(fmt::format("`{}` is a checkpoint: {}", options.path, kOverridesAreForSpecs),
                "add `--spec SPEC` to compare it with one");
  }
}

void PrintResults(const StatsResults& all, bool json) {
  const auto& measured = all.measured;
  Print(json ? InJson(all)
             : (measured.size() == 1 ? InFull(measured[0]) : InTable(measured)) +
                   DescribeUnusual(all));
}

// Reports tensors that do not match their own declarations.
ExitCode ReportMismatches(const std::vector<Measurement>& results, bool json) {
  int64_t wrong = 0;
  for (const Measurement& m : results) {
    if (!m.is_wrong) continue;
    ++wrong;
    Report(DescribeMismatch(m), json);
  }
  if (wrong == 0) return ExitCode::kOk;
  Report(fmt::format("shardinit: {} of {} not as declared\n", wrong,
                     Count(std::ssize(results), "tensor")),
         json);
  return ExitCode::kDifferent;
}

ExitCode RunStats(const StatsOptions& options) {
  const int jobs = options.work.Jobs();
  const ProgressMode mode = options.work.Mode();
  const bool is_folder = MayHoldTensors(options.path);
  RequireFitting(options, is_folder);
  StatsResults all;
  std::optional<TensorFolder> folder;
  if (is_folder) {
    SayFolder(folder.emplace(options.path, options.part));
  } else {
    RequireNoPart(options.part, options.path);
  }
  SpecOptions generated = options.spec;
  generated.request.path = options.path;
  const Plan loaded = is_folder ? Plan() : generated.Load();
  const Plan& plan = is_folder ? folder->plan() : loaded;
  // Without a layout, a spec may still store its tensors padded, and padding has no distribution.
  const bool stored = is_folder || !options.spec.layout.empty();
  const std::vector<const Tensor*> tensors =
      Matching(stored ? plan.graph.tensors : plan.graph.logical(), options.only);
  std::optional<ResultFile> page;
  if (!options.html.empty()) page.emplace(kStatsPage, options.html, options.force);
  std::optional<AgainstSpec> against;
  if (!options.spec.request.path.empty()) {
    CompareWithSpec(options, &against.emplace());
    all.spec = against->plan.graph.name;
    all.missing = MissingOf(*against, options.only);
  }
  const auto declaring = against ? FindDeclarations(tensors, *against, &all) : tensors;
  int64_t bytes = 0;
  for (const Tensor* tensor : tensors) bytes += tensor->bytes();
  all.is_folder = is_folder;
  {
    const StretchesOf stretches = folder ? Stored(*folder, tensors) : Generated(tensors);
    Progress progress(mode, "measuring", bytes, options.json);
    all.measured =
        Measure(tensors, declaring, stretches, jobs, [&](int64_t done) { progress.Update(done); });
  }
  if (folder) folder->RequireUnchanged();
  if (against) MarkInitial(*against, &all.measured);
  if (page) page->Write(StatsPage(plan.graph.name, all.measured));
  PrintResults(all, options.json);
  // Trained values do not match a spec's declarations; `verify --spec` reports that.
  return against ? ExitCode::kOk : ReportMismatches(all.measured, options.json);
}

}  // namespace

extern const Command kStats = {
    "stats", "Measure the values of tensors and test them against the spec", Configure<RunStats>};

}  // namespace shardinit
