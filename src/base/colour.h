// Colours text for people at terminals. No other file makes these escape codes, and no text needs
// them to be understood.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardinit {

enum class Channel { kOutput, kTalk };  // standard output, standard error
enum class ColourMode { kAuto, kAlways, kNever };

// The role of a piece of text decides its colour.
enum class Role {
  kError,
  kWarning,
  kNote,
  kHint,
  kStrong,   // what the text around it is about
  kFaint,    // what few readers look for
  kGood,     // as it should be, or added
  kBad,      // not as it should be, or removed
  kChanged,  // neither good nor bad
};

// Tells whether a person may see the stream in a terminal that knows escape codes.
bool IsTerminal(Channel stream);

// Decides which streams are coloured, before any thread starts; until then none is. kAuto means
// those that are terminals, or none if NO_COLOR is set.
void ChooseColours(ColourMode mode);
// For a stream that goes to a file instead.
void NeverColour(Channel stream);

// Returns text for `stream`, which has a colour if the stream has.
std::string Paint(Role role, std::string_view text, Channel stream = Channel::kOutput);

// Returns painted text as it was before.
std::string WithoutColour(std::string_view text);

// Escapes painted text as Escape() escapes text, but keeps its codes: a cell of a table.
std::string EscapePainted(std::string_view text);

// Escapes what no name may have escaped from: control, bidirectional and invisible characters of a
// whole text on its way to a terminal, but not its lines, tabs and colours. In JSON it says the
// same.
std::string MakeHarmless(std::string_view text);

// Returns the bytes of the code that `text` starts with, which takes no column; 0 without one.
size_t CodeSize(std::string_view text);

}  // namespace shardinit
