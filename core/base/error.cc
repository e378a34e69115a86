#include "weft/core/base/error.h"

#include <exception>
#include <new>
#include <utility>

namespace weft {
namespace {

// The compiler's name of a file, relative to the source root. Headers come from an include folder:
// ".../_virtual_includes/core/weft/core/base/shape.h".
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

void keep_on_one_line(std::string& text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
}

std::string one_line(std::string_view op, std::string_view message, const std::string& where) {
  std::string text;
  text.append("[").append(op).append("] ").append(message);
  if (const std::string path = detail::module_path_of_thread(); !path.empty())
    text.append(" in ").append(path);
  text.append(" at ").append(where);
  keep_on_one_line(text);
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

Error::Error(const Error& first, std::string text, std::string context)
    : std::runtime_error(text),
      code_(first.code_),
      op_(first.op_),
      where_(first.where_),
      context_(std::move(context)) {}

Error Error::with_context(std::string_view context) const {
  std::string all = context_, text = what();
  all.append(all.empty() ? "" : ", ").append(context);
  text.append(context_.empty() ? " in " : ", ").append(context);
  keep_on_one_line(text);
  return Error(*this, std::move(text), std::move(all));
}

namespace {

// Throws an Error in which the exception being handled is nested.
[[noreturn]] void throw_nested(ErrorCode code, std::string_view text, std::string_view context,
                               SourceLine place) {
  std::throw_with_nested(
      Error(code, "exception", text, place.file, place.line).with_context(context));
}

}  // namespace

void rethrow_within(std::string_view context, SourceLine place) {
  try {
    throw;
  } catch (const Error& error) {
    const Error longer = error.with_context(context);
    const auto* wrapper = dynamic_cast<const std::nested_exception*>(&error);
    if (!wrapper || !wrapper->nested_ptr()) throw longer;
    try {
      wrapper->rethrow_nested();
    } catch (...) {
      std::throw_with_nested(longer);
    }
  } catch (const std::bad_alloc& error) {
    throw_nested(ErrorCode::OutOfMemory, error.what(), context, place);
  } catch (const std::exception& error) {
    throw_nested(ErrorCode::Library, error.what(), context, place);
  } catch (...) {
    throw_nested(ErrorCode::Library, "an exception of unknown type", context, place);
  }
}

}  // namespace weft
