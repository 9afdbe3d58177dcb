// Writes messages for people to standard error. Programs do not depend on them, so failed writes
// are ignored.
#pragma once

#include <string_view>

namespace shardinit {

void Talk(std::string_view text);

// How much is printed: kQuiet prints only problems; kVerbose adds the cost of a run.
enum class Loudness { kQuiet, kNormal, kVerbose };
void SetLoudness(Loudness loudness);
Loudness LoudnessOfTalk();

// Prints a report of success, which --quiet omits.
void TalkUnlessQuiet(std::string_view text);

// Opens /dev/null for closed standard streams. Otherwise the next opened file would become one of
// them, and messages would be written into it.
void OccupyStandardStreams();

}  // namespace shardinit
