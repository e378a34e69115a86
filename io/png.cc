#include "weft/io/png.h"

#include <png.h>

#include <cstddef>
#include <cstring>

#include "weft/core/file.h"
#include "weft/tensor/ops.h"

namespace weft::io {

void write_png(const std::string& path, const Image& image) {
  WEFT_CHECK(image.width > 0 && image.height > 0 && (image.channels == 1 || image.channels == 3),
             InvalidArgument, "png", "needs a positive size and 1 or 3 channels, got ", image.width,
             " x ", image.height, " x ", image.channels);
  const std::size_t row = static_cast<std::size_t>(image.width) * image.channels;
  WEFT_CHECK(image.pixels.size() == row * image.height, InvalidArgument, "png", image.width, " x ",
             image.height, " x ", image.channels, " needs ", row * image.height, " bytes, got ",
             image.pixels.size());

  // libpng's simplified interface reports by return value; the classic one by longjmp.
  png_image png;
  std::memset(&png, 0, sizeof png);
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::vector<std::byte> file(bytes);
  const int written = png_image_write_to_memory(&png, file.data(), &bytes, 0, image.pixels.data(),
                                                static_cast<png_int_32>(row), nullptr);
  WEFT_CHECK(written != 0, Library, "png", path, ": libpng: ", png.message);
  write_file_atomically(path, std::span<const std::byte>(file.data(), bytes));
}

void write_png(const std::string& path, const Tensor& x) {
  WEFT_CHECK(x.dtype() == DType::u8, Dtype, "png", "needs u8, got ", x.dtype());
  const bool has_channels = x.dim() == 3;
  WEFT_CHECK(x.dim() == 2 || (has_channels && (x.shape(0) == 1 || x.shape(0) == 3)), Shape, "png",
             "needs [H,W], [1,H,W] or [3,H,W], got ", x.shape());
  const Tensor host = raw::to(x, Device());
  const Tensor pixels = raw::contiguous(has_channels ? raw::permute(host, {1, 2, 0}) : host);
  Image image;
  image.channels = has_channels ? static_cast<int>(x.shape(0)) : 1;
  image.height = static_cast<int>(x.shape(-2));
  image.width = static_cast<int>(x.shape(-1));
  const std::uint8_t* data = pixels.data<std::uint8_t>();
  image.pixels.assign(data, data + pixels.numel());
  write_png(path, image);
}

}  // namespace weft::io
