#include "commands/complete.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <span>

#include "base/text.h"
#include "commands/command.h"

namespace shardinit {
namespace {

constexpr unsigned kMostSeconds = 2;  // The shell blocks until it has the answer.

// The option or argument whose value a word is.
struct Expected {
  const CLI::Option* option = nullptr;
  size_t begin = 0;  // where the value begins in the word
};

// Reads the words of a command that are typed so far.
class LineReader {
 public:
  explicit LineReader(const CLI::App& command) : command_(command) {}

  void Read(const std::string& word) {
    const Expected value = Next(word);
    waiting_ = nullptr;
    if (word == "--" && !only_positionals_) {
      only_positionals_ = true;
    } else if (value.option != nullptr && !value.option->get_positional()) {
      line_.options[Spellings(*value.option).back()].push_back(word.substr(value.begin));
    } else if (!IsOption(word)) {
      line_.positionals.push_back(word);
    } else if (const CLI::Option* option = command_.get_option_no_throw(word);
               option != nullptr && option->get_items_expected_max() > 0) {
      waiting_ = option;
    }
  }

  // Returns the option or argument whose value the next word is, if any.
  Expected Next(const std::string& word) const {
    if (waiting_ != nullptr) return {waiting_};
    if (IsOption(word)) {
      const size_t end = word.find('=');
      if (end == word.npos) return {};
      return {command_.get_option_no_throw(word.substr(0, end)), end + 1};
    }
    size_t index = line_.positionals.size();
    for (const CLI::Option* option : command_.get_options()) {
      if (option->get_positional() && index-- == 0) return {option};
    }
    return {};
  }

  const TypedLine& line() const { return line_; }

 private:
  bool IsOption(const std::string& word) const {
    return !only_positionals_ && word.size() > 1 && word.starts_with('-');
  }

  const CLI::App& command_;
  TypedLine line_;
  const CLI::Option* waiting_ = nullptr;  // still needs its value
  bool only_positionals_ = false;
};

void AddOptions(const CLI::App& command, Candidates* found) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : Spellings(*option)) {
      found->words.push_back({name, option->get_description()});
    }
  }
}

Candidates AtCursor(const CLI::App& root, std::span<const std::string> words) {
  Candidates found;
  const std::string& word = words.back();
  if (words.size() == 1) {
    for (const CLI::App* command : root.get_subcommands({})) {
      found.words.push_back({command->get_name(), command->get_description()});
    }
    if (word.starts_with('-')) AddOptions(root, &found);
    return found;
  }
  const CLI::App* const command = FindApp(root, words[0]);
  if (command == nullptr) return found;
  LineReader reader(*command);
  for (const std::string& each : words.subspan(1, words.size() - 2)) reader.Read(each);
  const auto [option, begin] = reader.Next(word);
  if (option != nullptr) {
    found = FindCandidates(*command, *option, reader.line(), std::string_view(word).substr(begin));
    for (Candidate& each : found.words) each.text.insert(0, word, 0, begin);
  }
  if (option == nullptr || word == "-") AddOptions(*command, &found);
  return found;
}

std::string OfferInLines(const Candidates& found, std::string_view word) {
  constexpr size_t kMost = 1000;
  std::string text;
  size_t count = 0;
  for (const auto& [candidate, about] : found.words) {
    if (!candidate.starts_with(word) || ++count > kMost) continue;
    text += fmt::format("{}\t{}\n", Escape(candidate), Escape(about));
  }
  return text + (found.files ? ":files\n" : "");
}

}  // namespace

std::vector<std::string> TypedLine::All(const std::string& option) const {
  const auto values = options.find(option);
  return values == options.end() ? std::vector<std::string>() : values->second;
}

std::string TypedLine::Last(const std::string& option) const {
  const auto values = options.find(option);
  return values == options.end() ? std::string() : values->second.back();
}

const CLI::App* FindApp(const CLI::App& root, std::string_view name) {
  for (const CLI::App* app : root.get_subcommands({})) {
    if (app->get_name() == name) return app;
  }
  return nullptr;
}

std::vector<std::string> Spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

void Complete(const std::vector<std::string>& words) {
  if (words.empty()) return;
  std::signal(SIGALRM, [](int) { _exit(0); });
  alarm(kMostSeconds);
  try {
    PrintExactly(OfferInLines(AtCursor(MakeApplication()->app, words), words.back()));
  } catch (const std::exception&) {
    // A spec may be invalid while the user edits it; other commands report why.
  }
}

}  // namespace shardinit
