// Collects errors and warnings about the user's input from every stage, and renders them.
#pragma once

#include <concepts>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/source.h"

namespace shardinit {

struct Diagnostic {
  enum class Severity { kNote, kWarning, kError };
  Severity severity;
  Span span;  // null span.source: shows only the message
  std::string message;
  std::string hint;  // empty: nothing to suggest
};

std::string_view NameOf(Diagnostic::Severity severity);  // `error`, as users see it

// The result of a function that has reported an error. Converts to nothing, null or false, as the
// function's result type requires.
struct Reported {
  template <typename T>
  operator std::optional<T>() && {
    return std::nullopt;
  }
  template <typename T>
  operator T*() && {
    return nullptr;
  }
  template <typename T>
  operator std::unique_ptr<T>() && {
    return nullptr;
  }
  template <typename T>
  operator std::shared_ptr<T>() && {
    return nullptr;
  }
  template <std::same_as<bool> T>
  operator T() && {
    return false;
  }
};

// Collects errors and warnings. Stages report everything they find, and nothing is printed here.
// Owns the sources that spans point into.
class Diagnostics {
 public:
  static constexpr size_t kMostErrors = 200;

  // Keeps `source` alive as long as any copy of this collector's list of sources.
  const Source* Add(Source source);

  // Adds an error. Throws InvalidSpec at kMostErrors.
  Reported Error(Span span, std::string message, std::string hint = {});
  // Adds a warning about valid input that is probably not intended. Call it only in the last pass:
  // passes count all reports to decide whether their input is valid.
  void Warning(Span span, std::string message, std::string hint);
  // Adds a second place to the last error or warning, such as a first definition.
  void Note(Span span, std::string message);

  const std::vector<Diagnostic>& all() const { return all_; }
  // Counts errors, not warnings or notes.
  size_t errors() const { return errors_; }
  bool HasErrors() const { return errors_ > 0; }

  // Turns all warnings into errors.
  void DenyWarnings();
  // Ends a stage. Throws InvalidSpec if any error was reported.
  void ThrowIfErrors() const;

 private:
  std::shared_ptr<std::deque<Source>> sources_ = std::make_shared<std::deque<Source>>();
  std::vector<Diagnostic> all_;
  size_t errors_ = 0;
};

class InvalidSpec : public std::runtime_error {
 public:
  InvalidSpec(std::vector<Diagnostic> diagnostics,
              std::shared_ptr<const std::deque<Source>> sources)
      : std::runtime_error("invalid spec"),
        diagnostics_(std::move(diagnostics)),
        sources_(std::move(sources)) {}
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
  std::shared_ptr<const std::deque<Source>> sources_;
};

// Returns `file:line:column` or `--set vars.d=8`; empty if the span has no source.
std::string PlaceOf(const Span& span);

// Renders `file:line:column: error: message`, the source line, a caret line and a hint. Escapes
// control characters of the user's text. A span with line 0 is the whole file.
std::string Render(const Diagnostic& diagnostic);

// Renders diagnostics sorted by place: up to `errors` errors and `warnings` warnings, then lines
// with the number of omitted ones.
std::string Render(const std::vector<Diagnostic>& diagnostics, size_t errors = 20,
                   size_t warnings = 8);

}  // namespace shardinit
