// Handles signals that end a run: at once, or noted by a handler and acted on where it is safe.
#pragma once

namespace shardinit {

// This is thrown where a long piece of work finds that a signal came; unwinding removes temporary
// files, and main() then ends by the same signal.
struct Interrupted {
  int signal;
};

// Installs handlers. SIGINT, SIGTERM and SIGHUP end the process at once while there is nothing to
// tidy up, and are noted while there is (then a second one ends it); SIGPIPE and SIGXFSZ become
// errors of the call that met them.
void HandleSignals();

// While one of these lives, there is something to tidy up, such as a temporary file, and signals
// are noted. Its owner calls ThrowIfInterrupted() in long work.
class SignalsWait {
 public:
  SignalsWait();
  ~SignalsWait();
  SignalsWait(SignalsWait&& other) noexcept;
};

// Returns the signal that came, or 0.
int PendingSignal();

inline void ThrowIfInterrupted() {
  if (const int signal = PendingSignal()) throw Interrupted{signal};
}

// Ends the process as if the signal had not been handled.
[[noreturn]] void EndBySignal(int signal);

}  // namespace shardinit
