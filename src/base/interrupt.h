// Handles signals that end a run: at once, or later where it is safe.
#pragma once

namespace shardinit {

// Long work throws this when a signal has arrived. Unwinding removes temporary files, and main()
// then ends by the same signal.
struct Interrupted {
  int signal;
};

// Installs handlers. SIGINT, SIGTERM and SIGHUP end the process at once if there is nothing to
// clean up. Otherwise the first one is recorded, and a second one ends the process. SIGPIPE and
// SIGXFSZ become errors of the failing call.
void HandleSignals();

// While one of these exists, there is something to clean up, such as a temporary file, and signals
// are recorded. Its owner calls ThrowIfInterrupted() during long work.
class SignalsWait {
 public:
  SignalsWait();
  ~SignalsWait();
  SignalsWait(SignalsWait&& other) noexcept;
};

// Returns the signal that arrived, or 0.
int PendingSignal();

inline void ThrowIfInterrupted() {
  if (const int signal = PendingSignal()) throw Interrupted{signal};
}

// Ends the process by the signal, as if it had no handler.
[[noreturn]] void EndBySignal(int signal);

}  // namespace shardinit
