// A tensor's name, dtype and shape as text, to be sent between ranks.
#pragma once

#include <istream>
#include <ostream>
#include <string>

#include "weft/core/base/dtype.h"
#include "weft/core/base/shape.h"

namespace weft::parallel {

struct TensorLayout {
  std::string name;  ///< one line
  DType dtype = DType::f32;
  Shape shape;
};

/// One line. The streams' locale must be the classic one.
std::ostream& operator<<(std::ostream& out, const TensorLayout& layout);
std::istream& operator>>(std::istream& in, TensorLayout& layout);

}  // namespace weft::parallel
