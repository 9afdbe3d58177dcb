// Signals that end a run: at once, or noted by a handler and acted on where it is safe.
#pragma once

namespace shardinit {

// Thrown where a long piece of work finds that a signal came; unwinding removes
// temporary files, and main() then ends by the same signal.
struct Interrupted {
  int signal;
};

// SIGINT, SIGTERM and SIGHUP end the process at once while there is nothing to tidy up, and are
// noted while there is (then a second one ends it); SIGPIPE and SIGXFSZ become errors of the call
// that met them.
void HandleSignals();

// There is something to tidy up, such as a temporary file, while one of these lives: signals are
// noted. Whoever has one calls ThrowIfInterrupted() in what takes long.
class SignalsWait {
 public:
  SignalsWait();
  ~SignalsWait();
  SignalsWait(SignalsWait&& other) noexcept;
};

// The signal that came, or 0.
int PendingSignal();

inline void ThrowIfInterrupted() {
  if (const int signal = PendingSignal()) throw Interrupted{signal};
}

// Ends the process as if the signal had not been handled.
[[noreturn]] void EndBySignal(int signal);

}  // namespace shardinit
