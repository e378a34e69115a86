// The models of the libraries that are loaded.
#pragma once

#include <string>

#include "weft/nn/any_module.h"

namespace weft::c_api {

/// Loads the library, if it is not loaded yet, and makes its model of that name; null is the
/// program itself. Throws Io if the library cannot be loaded, InvalidArgument if it has no such
/// model or more than one.
nn::AnyModule make_model(const char* library, const std::string& name);

}  // namespace weft::c_api
