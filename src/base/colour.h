// Colours text for terminals. Only this file writes escape codes, and text must be clear without
// them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardinit {

enum class Channel { kOutput, kTalk };  // standard output, standard error
enum class ColourMode { kAuto, kAlways, kNever };

// The role of a text determines its colour.
enum class Role {
  kError,
  kWarning,
  kNote,
  kHint,
  kStrong,   // the subject of the text around it
  kFaint,    // details that few readers need
  kGood,     // correct, or added
  kBad,      // wrong, or removed
  kChanged,  // neither good nor bad
};

// Returns whether the stream is a terminal that supports escape codes.
bool IsTerminal(Channel stream);

// Selects the streams that are coloured; before the call, none is. kAuto selects terminals, or
// nothing if NO_COLOR is set. Call it before any thread starts.
void ChooseColours(ColourMode mode);
// Turns off colours for a stream that is redirected to a file.
void NeverColour(Channel stream);

// Returns `text` with a colour if `stream` is coloured.
std::string Paint(Role role, std::string_view text, Channel stream = Channel::kOutput);

// Removes the colours that Paint() added.
std::string WithoutColour(std::string_view text);

// Escapes painted text for a table cell as Escape() does, but keeps its escape codes.
std::string EscapePainted(std::string_view text);

// Escapes control, bidirectional and invisible characters in text for a terminal, in case a name
// was not escaped. Keeps lines, tabs and colours. The meaning of JSON does not change.
std::string MakeHarmless(std::string_view text);

// Returns the size in bytes of the escape code at the start of `text`, or 0. A code has no width.
size_t CodeSize(std::string_view text);

}  // namespace shardinit
