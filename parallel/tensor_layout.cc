#include "weft/parallel/tensor_layout.h"

#include <cstdint>

namespace weft::parallel {

std::ostream& operator<<(std::ostream& out, const TensorLayout& layout) {
  out << static_cast<int>(layout.dtype) << ' ' << layout.shape.size() << ' ';
  for (const std::int64_t side : layout.shape) out << side << ' ';
  return out << layout.name << '\n';
}

std::istream& operator>>(std::istream& in, TensorLayout& layout) {
  int dtype = 0, sides = 0;
  if (!(in >> dtype >> sides)) return in;
  layout.dtype = static_cast<DType>(dtype);
  layout.shape = {};
  for (std::int64_t side = 0; layout.shape.size() < sides && in >> side;) {
    layout.shape.push_back(side);
  }
  in.ignore();
  return std::getline(in, layout.name);
}

}  // namespace weft::parallel
