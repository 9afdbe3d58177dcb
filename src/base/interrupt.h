// Signals that end a run: noted by a handler, acted on where it is safe.
#pragma once

namespace shardinit {

// Thrown where a long piece of work finds that a signal came; unwinding removes
// temporary files, and main() then ends by the same signal.
struct Interrupted {
  int signal;
};

// SIGINT, SIGTERM and SIGHUP are noted (the second one ends the process at
// once); SIGPIPE and SIGXFSZ become errors of the call that met them.
void HandleSignals();

// The signal that came, or 0.
int PendingSignal();

inline void ThrowIfInterrupted() {
  if (const int signal = PendingSignal()) throw Interrupted{signal};
}

// Ends the process as if the signal had not been handled.
[[noreturn]] void EndBySignal(int signal);

}  // namespace shardinit
