// Runs the command that the arguments name and returns its exit status. Every exception ends here.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "base/arithmetic.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/talk.h"
#include "commands/command.h"
#include "formats/hdf5/reader.h"
#include "kernels/kernels.h"

namespace shardinit {
namespace {

// Returns whether the hint repeats the command that failed, as `shardinit inspect x` does after
// that command: it has the same words in the same order, except that options may be left out.
bool Repeats(std::string_view hint, std::span<char* const> words) {
  constexpr std::string_view kBegin = "`shardinit ";
  for (size_t at = 0; (at = hint.find(kBegin, at)) != hint.npos; ++at) {
    std::string_view advised = hint.substr(at + kBegin.size());
    advised = advised.substr(0, advised.find('`'));
    bool is_same = advised.find(' ') != advised.npos;  // Otherwise the hint is about the options.
    for (const std::string_view word : words) {
      const std::string_view next = advised.substr(0, advised.find(' '));
      if (word == next && !advised.empty()) {
        advised.remove_prefix(std::min(word.size() + 1, advised.size()));
      } else {
        is_same = is_same && word.starts_with('-');
      }
    }
    if (is_same && advised.empty()) return true;
  }
  return false;
}

void PrintError(const std::string& message, const std::string& hint) {
  Talk(RenderError(message, hint));
}

// Lets tests force one instruction set, to compare it with the others.
void ForceKernels() {
  const char* target = std::getenv("SHARDINIT_TARGET");
  if (target == nullptr || *target == '\0' || kernels::ForceTarget(target)) return;
  throw Usage(
      fmt::format("SHARDINIT_TARGET is `{}`, which this CPU or build does not have", target),
      "`shardinit --version --json` lists them");
}

std::terminate_handler terminate_of_library = nullptr;

// Exits with the status for memory exhaustion where no handler can catch std::bad_alloc: before
// main, and in `noexcept` functions of libraries. It allocates nothing.
[[noreturn]] void EndWithoutMemory() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kMessage = "shardinit: error: out of memory\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
    _exit(static_cast<int>(ExitCode::kWorld));
  } catch (...) {
  }
  terminate_of_library();
  std::abort();
}

// Runs before any other static initializer.
__attribute__((constructor(101))) void HandleEndOfMemory() {
  terminate_of_library = std::set_terminate(EndWithoutMemory);
}

int Main(int argc, char** argv) {
  const DefaultArithmetic arithmetic;
  try {
    OccupyStandardStreams();
    HandleSignals();
    RememberInputs();
    hdf5::SetUpLibrary();
    ForceKernels();
    return static_cast<int>(RunCommandLine(argc, argv));
  } catch (const Interrupted& e) {
    EndBySignal(e.signal);
  } catch (const InvalidSpec& e) {
    Talk(Render(e.diagnostics()));
    return static_cast<int>(ExitCode::kUsage);
  } catch (const Error& e) {
    const std::span words(argv, static_cast<size_t>(argc));
    PrintError(e.what(), Repeats(e.hint(), words) ? "" : e.hint());
    return static_cast<int>(e.code());
  } catch (const std::bad_alloc&) {
    PrintError("out of memory", "use fewer threads (`--jobs`) or less memory (`--memory`)");
    return static_cast<int>(ExitCode::kWorld);
  } catch (const std::exception& e) {
    PrintError(fmt::format("this is a bug in shardinit: {}", e.what()),
               "please report it with the command, the spec and `shardinit --version --json`");
    return static_cast<int>(ExitCode::kBug);
  }
}

}  // namespace
}  // namespace shardinit

int main(int argc, char** argv) { return shardinit::Main(argc, argv); }
