// weft's only exception type and the macros that throw it.
#pragma once

#include <concepts>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "weft/core/base/compiler.h"

namespace weft {

enum class ErrorCode {
  Shape,
  Dtype,
  Device,
  Unsupported,
  OutOfMemory,
  Cuda,
  Library,
  Comm,
  Timeout,
  PeerFailed,
  Io,
  InvalidArgument,
  Internal,
};

/// "Shape", "OutOfMemory" ...
const char* to_string(ErrorCode code);

/// Every failure that weft reports. what() reads
///   [conv2d] input channels: got 3, weight expects 16 (x [8,3,32,32], w [16,16,3,3])
///   in layer1.0.conv1 at tensor/conv.cc:41
/// on one line. It contains the module path if the calling thread is inside a module's forward. The
/// end says where the failed work was done, if within() was used:
///   ... at tensor/conv.cc:41 in replica on cpu:1, rank 2
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string_view op, std::string_view message, const char* file, int line);

  ErrorCode code() const { return code_; }
  /// The operation or room that failed: "conv2d", "safetensors".
  const std::string& op() const { return op_; }
  /// "tensor/conv.cc:41", relative to the source root.
  const std::string& where() const { return where_; }
  /// "replica on cpu:1, rank 2": what within() added, innermost first; usually empty.
  const std::string& context() const { return context_; }

  /// The same error with `context` added to the end of its text.
  Error with_context(std::string_view context) const;

 private:
  Error(ErrorCode code, std::string_view op, std::string_view message, std::string where);
  Error(const Error& first, std::string text, std::string context);

  ErrorCode code_;
  std::string op_;
  std::string where_;
  std::string context_;
};

/// A line of a source file. As the default of an argument, here() is the line of the call. Replaces
/// std::source_location, which clang has only from version 16 on.
struct SourceLine {
  const char* file;
  int line;

  static constexpr SourceLine here(const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// Must be called in a catch block: rethrows the exception with `context` in its text, which says
/// where it happened ("replica on cpu:1", "rank 2", "stage 1"). Code, op and place of an Error stay
/// the same. Any other exception becomes an Error with its text, op "exception" and the place of
/// this call; its code is OutOfMemory for std::bad_alloc, else Library: it is not weft's code. The
/// original is nested in it, for std::rethrow_if_nested.
[[noreturn]] void rethrow_within(std::string_view context, SourceLine place = SourceLine::here());

/// Runs f(); its exceptions leave through rethrow_within(). Costs nothing without an exception:
/// `context` is a text, or a function that makes the text and is only called for an exception.
///   within([&] { return "replica on " + to_string(device); }, [&] { return replica(x); });
template <class Context, class F>
decltype(auto) within(const Context& context, F&& f, SourceLine place = SourceLine::here()) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    if constexpr (std::convertible_to<const Context&, std::string_view>) {
      rethrow_within(context, place);
    } else {
      rethrow_within(context(), place);
    }
  }
}

namespace detail {
/// module_path() of thread_state.h, which is above this header.
std::string module_path_of_thread();

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  // A host program's locale must not group the digits. std::locale comes with every stream, and
  // <locale> would bring thousands of lines more into each source.
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return out.str();
}
}  // namespace detail

}  // namespace weft

/// WEFT_THROW(Shape, "conv2d", "input channels: got ", c, ", weight expects ", k)
#define WEFT_THROW(code, op, ...)                                                         \
  throw ::weft::Error(::weft::ErrorCode::code, (op), ::weft::detail::concat(__VA_ARGS__), \
                      __FILE__, __LINE__)

/// Throws unless `cond` holds; the message parts are only evaluated on failure.
#define WEFT_CHECK(cond, code, op, ...)  \
  do {                                   \
    if (!(cond)) [[unlikely]]            \
      WEFT_THROW(code, op, __VA_ARGS__); \
  } while (0)
