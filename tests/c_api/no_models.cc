// A library that defines no model.
#include "weft/core/base/version.h"

extern "C" __attribute__((visibility("default"))) const char* no_models() { return weft::kVersion; }
