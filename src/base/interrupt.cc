#include "base/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace shardinit {
namespace {

std::atomic<int> pending{0}, waiting{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

extern "C" void Note(int signal) {
  int none = 0;
  if (waiting == 0 || !pending.compare_exchange_strong(none, signal)) {
    ::signal(signal, SIG_DFL);
    raise(signal);
  }
}

}  // namespace

void HandleSignals() {
  struct sigaction action = {};
  action.sa_handler = Note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_NODEFER;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction old;
    // Signals that nohup(1) or a background job ignores must stay ignored.
    if (sigaction(number, nullptr, &old) == 0 && old.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

SignalsWait::SignalsWait() { ++waiting; }
SignalsWait::SignalsWait(SignalsWait&&) noexcept : SignalsWait() {}
SignalsWait::~SignalsWait() { --waiting; }

int PendingSignal() { return pending.load(); }

void EndBySignal(int number) {
  signal(number, SIG_DFL);
  raise(number);
  _exit(128 + number);
}

}  // namespace shardinit
