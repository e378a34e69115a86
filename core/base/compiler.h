// What weft needs from the compiler. Every public header includes this one, directly or indirectly.
//
// If something is missing, an include of a file that does not exist reports it and ends the
// compilation. After an #error, hundreds of other errors would follow.
#pragma once

// clang-format off
#if __cplusplus < 202002L
#include "weft needs C++20: compile with -std=c++20"
#elif !defined(__cpp_rtti)
#include "weft needs RTTI: compile without -fno-rtti"
#elif !defined(__cpp_exceptions)
#include "weft needs exceptions: compile without -fno-exceptions"
#endif
// clang-format on
