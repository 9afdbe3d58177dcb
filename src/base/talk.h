// Talk goes to standard error: a person may want to know it, and no program depends on it. So
// nothing happens if nobody can hear it.
#pragma once

#include <string_view>

namespace shardinit {

void Talk(std::string_view text);

// How much is said: with --quiet only what is wrong, with --verbose also what a run cost.
enum class Loudness { kQuiet, kNormal, kVerbose };
void SetLoudness(Loudness loudness);
Loudness LoudnessOfTalk();

// Talks of what went well, which --quiet leaves out.
void TalkUnlessQuiet(std::string_view text);

// Opens /dev/null for standard streams that are closed: else the next file to be opened would
// become one of them, and talk would be written into it.
void OccupyStandardStreams();

}  // namespace shardinit
