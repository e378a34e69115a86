// The header of a .npy file.
#pragma once

#include <cstdint>
#include <string>

#include "weft/core/base/dtype.h"
#include "weft/core/base/shape.h"
#include "weft/io/byte_stream.h"

namespace weft::io::detail {

inline constexpr const char* kNpy = "npy";

struct NpyHeader {
  DType dtype = DType::f32;
  bool half = false;  ///< f16 in the file, f32 in memory
  bool fortran_order = false;
  Shape shape;
  std::uint64_t header_bytes = 0;  ///< all before the values
  std::uint64_t data_bytes = 0;
};

/// Reads the header from the start of a stream. The sizes have been multiplied without overflow.
/// Throws as load_npy(); `name` is the file's.
NpyHeader read_npy_header(ByteStream& stream, const std::string& name);

/// The header, as numpy writes it, of an array in row-major order.
std::string format_npy_header(DType dtype, const Shape& shape);

}  // namespace weft::io::detail
