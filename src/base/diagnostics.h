// Collects what is wrong with the user's input in every stage, and renders it once.
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
  Span span;  // null span.source: only the message is shown
  std::string message;
  std::string hint;  // empty if there is nothing useful to suggest
};

std::string_view NameOf(Diagnostic::Severity severity);  // `error`, as users see it

// The result of a function that has reported a mistake, as its caller has it: nothing, null or
// false.
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

// Collects mistakes in the user's input. Stages report everything they find; nothing is printed
// here. Owns the sources that spans point into.
class Diagnostics {
 public:
  static constexpr size_t kMostErrors = 200;

  // Keeps `source` alive as long as any copy of this collector's sources.
  const Source* Add(Source source);

  // Adds an error, and ends the run (throws InvalidSpec) at kMostErrors.
  Reported Error(Span span, std::string message, std::string hint = {});
  // Adds something that may be meant, unless the user denies warnings. Passes count what was
  // reported to know whether their input is right, so only the last one warns.
  void Warning(Span span, std::string message, std::string hint);
  // Adds a second place that belongs to the last error or warning, such as a first definition.
  void Note(Span span, std::string message);

  const std::vector<Diagnostic>& all() const { return all_; }
  // Counts errors; what is only noted stops nothing.
  size_t errors() const { return errors_; }
  bool HasErrors() const { return errors_ > 0; }

  // Makes every warning an error.
  void DenyWarnings();
  // Ends a stage: throws InvalidSpec if any error was reported.
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

// Returns `file:line:column` or `--set vars.d=8`; empty if there is no place.
std::string PlaceOf(const Span& span);

// Renders `file:line:column: error: message`, the source line, a caret line, a hint. Control
// characters of the user's text are escaped. A span whose line is 0 is the whole file.
std::string Render(const Diagnostic& diagnostic);

// Renders all of them, by place, at most so many errors and warnings, and then lines that count the
// rest of each.
std::string Render(const std::vector<Diagnostic>& diagnostics, size_t errors = 20,
                   size_t warnings = 8);

}  // namespace shardinit
