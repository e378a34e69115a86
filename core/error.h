// The one exception type of weft and the macros that raise it.
#pragma once

#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

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

/// Every failure weft reports. what() reads
///   [conv2d] input channels: got 3, weight expects 16 (x [8,3,32,32], w [16,16,3,3])
///   in layer1.0.conv1 at tensor/conv.cc:41
/// on one line; the module path is added when the calling thread is inside a module's forward.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string_view op, std::string_view message, const char* file, int line);

  ErrorCode code() const { return code_; }
  /// The operation or room that refused: "conv2d", "safetensors".
  const std::string& op() const { return op_; }
  /// "tensor/conv.cc:41", relative to the source root.
  const std::string& where() const { return where_; }

 private:
  Error(ErrorCode code, std::string_view op, std::string_view message, std::string where);

  ErrorCode code_;
  std::string op_;
  std::string where_;
};

namespace detail {
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // a host program's locale must not group the digits
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
