#include "weft/tensor/tree.h"

#include "weft/core/base/error.h"

namespace weft::detail {

std::string short_type_name(std::string_view pretty) {
  const auto start = pretty.find("T = ") + 4;
  std::string_view name = pretty.substr(start, pretty.find_first_of(";]", start) - start);
  if (const auto arguments = name.find('<'); arguments != std::string_view::npos) {
    name = name.substr(0, arguments);
  }
  if (const auto scope = name.rfind("::"); scope != std::string_view::npos) {
    name = name.substr(scope + 2);
  }
  return std::string(name);
}

void throw_unknown_type(const char* op, const std::string& type) {
  WEFT_THROW(InvalidArgument, op, "a value of type ", type,
             " may hold tensors that nothing can find; give the struct a member "
             "`auto tensors() { return std::tie(x, y); }` that names its parts with tensors in "
             "them, `std::tie()` where it has none");
}

}  // namespace weft::detail
