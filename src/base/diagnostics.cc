#include "base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/colour.h"
#include "base/error.h"
#include "base/text.h"

namespace shardinit {
namespace {

// Longer lines are shown from shortly before the caret.
constexpr size_t kLongestLine = 120;
constexpr size_t kBeforeCaret = 40;

// How each severity is displayed, in the order of the enumeration.
struct SeverityText {
  std::string_view name;
  Role role;
};
constexpr SeverityText kSeverities[] = {
    {"note", Role::kNote}, {"warning", Role::kWarning}, {"error", Role::kError}};

const SeverityText& TextOf(Diagnostic::Severity severity) {
  return kSeverities[static_cast<size_t>(severity)];
}

// Finds lines in texts. Takes linear time if lines are mostly requested in order: there may be
// thousands of warnings.
class LineFinder {
 public:
  std::string_view Find(std::string_view text, uint32_t line) {
    if (text.data() != text_.data() || text.size() != text_.size() || line < line_) {
      text_ = text;
      line_ = 1;
      begin_ = 0;
    }
    for (; line_ < line; ++line_) {
      const size_t end = text.find('\n', begin_);
      if (end == std::string_view::npos) return {};
      begin_ = end + 1;
    }
    text = text.substr(begin_, text.find('\n', begin_) - begin_);
    if (text.ends_with('\r')) text.remove_suffix(1);
    return text;
  }

 private:
  std::string_view text_;
  uint32_t line_ = 1;
  size_t begin_ = 0;  // of that line
};

size_t CharactersIn(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

// Moves `offset` back to the start of a character.
size_t CharacterStart(std::string_view text, size_t offset) {
  while (offset > 0 && offset < text.size() && (text[offset] & 0xc0) == 0x80) --offset;
  return offset;
}

// Returns the source line, and carets under the `length` bytes from `start`.
std::string Excerpt(std::string_view line, size_t start, size_t length, Role role) {
  size_t begin = 0, end = line.size();
  if (line.size() > kLongestLine) {
    if (start > kBeforeCaret) begin = CharacterStart(line, start - kBeforeCaret);
    if (end - begin > kLongestLine) end = CharacterStart(line, begin + kLongestLine);
  }
  std::string shown = begin > 0 ? "…" : "", carets = begin > 0 ? " " : "";
  size_t last = carets.size();  // where the caret line ends
  for (size_t i = begin; i < end;) {
    const Character c = CharacterAt(line, i);
    const bool clean = c.valid && !IsUnsafe(c.code);
    const std::string cell =
        clean ? std::string(line.substr(i, c.size)) : Escape(line.substr(i, c.size));
    const size_t width = clean ? DisplayWidth(c.code) : cell.size();
    shown += cell;
    const bool covered = i >= start && i < start + length;
    // A tab before the caret stays a tab, so that both lines align.
    carets += covered ? std::string(width, '^') : c.code == '\t' ? "\t" : std::string(width, ' ');
    if (covered) last = carets.size();
    i += c.size;
  }
  if (start >= line.size()) {
    carets += '^';
    last = carets.size();
  }
  carets.resize(last);
  if (end < line.size()) shown += "…";
  while (shown.ends_with(' ') || shown.ends_with('\t')) shown.pop_back();
  const size_t first = std::min(carets.find('^'), carets.size());
  return fmt::format("  {}\n  {}{}\n", shown, carets.substr(0, first),
                     Paint(role, carets.substr(first), Channel::kTalk));
}

// Returns `file:line:column`, or only the file.
std::string Locate(const Span& span, LineFinder& lines) {
  const std::string name = Escape(span.source->name);
  if (span.line == 0) return name;
  const std::string_view line = lines.Find(span.source->text, span.line);
  return fmt::format("{}:{}:{}", name, span.line,
                     CharactersIn(line.substr(0, span.column - 1)) + 1);
}

}  // namespace

std::string_view NameOf(Diagnostic::Severity severity) { return TextOf(severity).name; }

const Source* Diagnostics::Add(Source source) { return &sources_->emplace_back(std::move(source)); }

Reported Diagnostics::Error(Span span, std::string message, std::string hint) {
  all_.push_back({Diagnostic::Severity::kError, span, std::move(message), std::move(hint)});
  // Stop early, so that a file with millions of errors does not cost much time or memory.
  if (++errors_ >= kMostErrors) ThrowIfErrors();
  return {};
}

void Diagnostics::Warning(Span span, std::string message, std::string hint) {
  all_.push_back({Diagnostic::Severity::kWarning, span, std::move(message), std::move(hint)});
}

void Diagnostics::Note(Span span, std::string message) {
  all_.push_back({Diagnostic::Severity::kNote, span, std::move(message), {}});
}

void Diagnostics::DenyWarnings() {
  for (Diagnostic& diagnostic : all_) {
    if (diagnostic.severity != Diagnostic::Severity::kWarning) continue;
    diagnostic.severity = Diagnostic::Severity::kError;
    ++errors_;
  }
}

void Diagnostics::ThrowIfErrors() const {
  if (HasErrors()) throw InvalidSpec(all_, sources_);
}

std::string PlaceOf(const Span& span) {
  if (span.source == nullptr) return {};
  // A command-line option is short, so it is shown whole, without a line and column.
  const auto& [name, text] = *span.source;
  LineFinder lines;
  return name.starts_with("--") ? fmt::format("{} {}", name, Escape(text)) : Locate(span, lines);
}

namespace {

std::string RenderOne(const Diagnostic& diagnostic, LineFinder& lines) {
  const Span& span = diagnostic.span;
  std::string out;
  std::string_view line;
  if (span.source != nullptr) {
    out = Paint(Role::kStrong, Locate(span, lines) + ":", Channel::kTalk) + " ";
    if (span.line > 0) line = lines.Find(span.source->text, span.line);
  }
  const auto [name, role] = TextOf(diagnostic.severity);
  out += fmt::format("{} {}\n", Paint(role, fmt::format("{}:", name), Channel::kTalk),
                     Escape(diagnostic.message));
  if (span.source != nullptr && span.line > 0) {
    const size_t start = std::min<size_t>(span.column - 1, line.size());
    out += Excerpt(line, start, std::max<uint32_t>(span.length, 1), role);
  }
  return out + RenderHint(diagnostic.hint);
}

// An error or a warning, together with its notes.
struct Group {
  size_t begin, end;
  std::tuple<size_t, uint32_t, uint32_t> place;
  Diagnostic::Severity severity;
};

std::vector<Group> ByPlace(const std::vector<Diagnostic>& diagnostics) {
  std::vector<Group> groups;
  std::unordered_map<const Source*, size_t> order;
  for (size_t i = 0; i < diagnostics.size(); ++i) {
    const auto& [severity, span, message, hint] = diagnostics[i];
    if (severity == Diagnostic::Severity::kNote && !groups.empty()) {
      groups.back().end = i + 1;
      continue;
    }
    const size_t source = order.try_emplace(span.source, order.size()).first->second;
    groups.push_back({i, i + 1, {source, span.line, span.column}, severity});
  }
  std::ranges::stable_sort(groups, {}, &Group::place);
  return groups;
}

// Returns the line that counts the diagnostics after the first `most`; empty if `most` covers all.
std::string AndMore(size_t count, size_t most, std::string_view what, std::string_view then) {
  if (count <= most) return {};
  return fmt::format("… and {}{} more {}{}{}\n",
                     count >= Diagnostics::kMostErrors && then.empty() ? "at least " : "",
                     count - most, what, count - most > 1 ? "s" : "", then);
}

}  // namespace

std::string Render(const Diagnostic& diagnostic) {
  LineFinder lines;
  return RenderOne(diagnostic, lines);
}

std::string Render(const std::vector<Diagnostic>& diagnostics, size_t errors, size_t warnings) {
  std::string out;
  LineFinder lines;
  size_t of_errors = 0, of_warnings = 0;
  for (const Group& group : ByPlace(diagnostics)) {
    const bool is_warning = group.severity == Diagnostic::Severity::kWarning;
    if (is_warning ? of_warnings++ >= warnings : of_errors++ >= errors) continue;
    for (size_t i = group.begin; i < group.end; ++i) {
      out += RenderOne(diagnostics[i], lines);
    }
  }
  return out + AndMore(of_errors, errors, "error", "") +
         AndMore(of_warnings, warnings, "warning", "; `shardinit validate` shows all");
}

}  // namespace shardinit
