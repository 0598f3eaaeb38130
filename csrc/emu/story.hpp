// emu/story.hpp: misuse that a real driver leaves undefined ends the process here, with one
// paragraph that says what was done and what it would have meant. Used by every file of emu/.
#pragma once

#include <string>

namespace weave::emu {

[[noreturn]] void abort_with_story(const std::string& story);

// "0x7f00..." for messages.
std::string hex(unsigned long long value);

}  // namespace weave::emu
