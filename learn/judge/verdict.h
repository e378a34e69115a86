// What a judge says while it runs: in which case it is, and what is wrong.
#pragma once

#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>

#include "weft/core/base/error.h"

namespace weft::learn {

/// How long a case may take. The right solutions take milliseconds.
inline constexpr std::chrono::seconds kPatience{8};

/// What a std::bad_alloc says: a child has 2 GiB.
inline constexpr const char* kTooMuchMemory =
    "it asked for more than the 2 GiB of memory that it has: is a size negative, or does a loop "
    "fill a vector for ever?";

/// A solution is wrong; what() is the sentence that the learner reads.
struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws Wrong unless `right`.
template <class... Parts>
void require(bool right, const Parts&... parts) {
  if (!right) throw Wrong(detail::concat(parts...));
}

/// Says what is judged from here on, such as "3 ranks, 10 numbers". A crash and a wait without end
/// are reported with it.
void begin_case(const std::string& text);

/// As throwing Wrong, but ends this process at once: for when threads of the solution still run.
[[noreturn]] void end_wrong(const std::string& text);

/// The calling thread is this rank from now on, for the report of a crash, and its stack may
/// overflow without taking that report with it.
void be_rank(int rank);

/// Runs f(), which must end within kPatience; else the process ends with end_wrong(text()).
/// For what runs in the calling thread alone.
void within_patience(const std::string& what_to_look_for, void (*f)(void*), void* data);
template <class F>
void within_patience(const std::string& what_to_look_for, F f) {
  within_patience(what_to_look_for, [](void* data) { (*static_cast<F*>(data))(); }, &f);
}

/// As many digits as tell the number from the next ones.
std::string digits(float value);

/// What the exception says, without the line of weft's sources that threw it: the learner has
/// nothing to look for there.
std::string text_of(const std::exception& error);

/// "3 of 2.25 MB", "48 of 36 bytes".
std::string bytes_of(std::int64_t got, std::int64_t expected);

}  // namespace weft::learn
