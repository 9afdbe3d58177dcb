#include "base/talk.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/colour.h"

namespace shardinit {
namespace {

Loudness loudness_of_talk = Loudness::kNormal;  // set once, before any thread starts

}  // namespace

void Talk(std::string_view text) {
  const std::string shown = MakeHarmless(text);
  std::fwrite(shown.data(), 1, shown.size(), stderr);
  std::fflush(stderr);
}

void SetLoudness(Loudness loudness) { loudness_of_talk = loudness; }

Loudness LoudnessOfTalk() { return loudness_of_talk; }

void TalkUnlessQuiet(std::string_view text) {
  if (loudness_of_talk != Loudness::kQuiet) Talk(text);
}

void OccupyStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // Standard output becomes read-only, so that a result that cannot be delivered is still an
    // error.
    const int flags = stream == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", flags) < 0) return;
  }
}

}  // namespace shardinit
