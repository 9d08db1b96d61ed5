// toml++ as everybody here includes it: files that people write come with every mistake, and none
// of them may end the process. The library asserts in one place (3.2, a table's name that begins
// with none of a name's characters: "[=]") what it reports as an error of the file just behind it.
#pragma once

#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(expr) static_assert(true)
#include "toml++/toml.h"
#pragma pop_macro("NDEBUG")
