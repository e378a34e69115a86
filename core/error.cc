#include "weft/core/error.h"

#include <utility>

#include "weft/core/thread_state.h"

namespace weft {
namespace {

// What the compiler calls a file, relative to the source root. Headers come through an include
// folder: ".../_virtual_includes/core/weft/core/shape.h".
std::string place(std::string_view file, int line) {
  constexpr std::string_view folder = "weft/";
  if (const auto at = file.rfind("/weft/"); at != std::string_view::npos) {
    file.remove_prefix(at + 1 + folder.size());
  } else if (file.starts_with(folder)) {
    file.remove_prefix(folder.size());
  }
  while (file.starts_with("./")) file.remove_prefix(2);
  return detail::concat(file, ':', line);
}

std::string one_line(std::string_view op, std::string_view message, const std::string& where) {
  std::string text;
  text.append("[").append(op).append("] ").append(message);
  if (const std::string path = module_path(); !path.empty()) text.append(" in ").append(path);
  text.append(" at ").append(where);
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

}  // namespace

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::Shape: return "Shape";
    case ErrorCode::Dtype: return "Dtype";
    case ErrorCode::Device: return "Device";
    case ErrorCode::Unsupported: return "Unsupported";
    case ErrorCode::OutOfMemory: return "OutOfMemory";
    case ErrorCode::Cuda: return "Cuda";
    case ErrorCode::Library: return "Library";
    case ErrorCode::Comm: return "Comm";
    case ErrorCode::Timeout: return "Timeout";
    case ErrorCode::PeerFailed: return "PeerFailed";
    case ErrorCode::Io: return "Io";
    case ErrorCode::InvalidArgument: return "InvalidArgument";
    case ErrorCode::Internal: return "Internal";
  }
  return "?";
}

Error::Error(ErrorCode code, std::string_view op, std::string_view message, const char* file,
             int line)
    : Error(code, op, message, place(file, line)) {}

Error::Error(ErrorCode code, std::string_view op, std::string_view message, std::string where)
    : std::runtime_error(one_line(op, message, where)),
      code_(code),
      op_(op),
      where_(std::move(where)) {}

}  // namespace weft
