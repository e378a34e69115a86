#include "weft/io/png.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "weft/core/runtime/file.h"
#include "weft/tensor/ops.h"

namespace weft::io {
namespace {

constexpr const char* kOp = "png";

// libpng's simplified interface would blend alpha and apply gamma, so reading uses the classic one.
// It reports an error by a function that must not return: ours jumps back to guarded(), only over C
// frames. The code that is jumped over must have no destructors to run.
struct Decoder {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::byte> rest;
  std::jmp_buf escape;
  char message[128] = "no memory for libpng";

  explicit Decoder(std::span<const std::byte> bytes) : rest(bytes) {
    png =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, [](png_structp, const char*) {});
    if (png != nullptr) info = png_create_info_struct(png);
  }
  ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  [[noreturn]] static void fail(png_structp png, const char* message) {
    Decoder& self = *static_cast<Decoder*>(png_get_error_ptr(png));
    std::snprintf(self.message, sizeof self.message, "%s", message);
    std::longjmp(self.escape, 1);
  }

  static void read(png_structp png, png_bytep out, std::size_t n) {
    Decoder& self = *static_cast<Decoder*>(png_get_io_ptr(png));
    if (n > self.rest.size()) png_error(png, "cut off");
    std::memcpy(out, self.rest.data(), n);
    self.rest = self.rest.subspan(n);
  }
};

/// Returns whether f() ran to its end without an error from libpng.
template <class F>
bool guarded(Decoder& decoder, F&& f) {
  if (setjmp(decoder.escape) != 0) return false;
  f();
  return true;
}

}  // namespace

Image parse_png(std::span<const std::byte> bytes, const ImageOptions& options,
                const std::string& name) {
  WEFT_CHECK(!bytes.empty(), Io, kOp, name, ": empty file");
  Decoder decoder(bytes);
  WEFT_CHECK(decoder.info != nullptr, OutOfMemory, kOp, name, ": no memory for libpng");
  const png_structp png = decoder.png;
  const png_infop info = decoder.info;
  const auto read_header = [&] {
    png_set_read_fn(png, &decoder, Decoder::read);
    // Text, profiles and the like are not needed and not worth inflating.
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_user_limits(png, 0x7fffffff, 0x7fffffff);  // the limit below is on the product
    png_read_info(png, info);
  };
  WEFT_CHECK(guarded(decoder, read_header), Io, kOp, name, ": damaged: ", decoder.message);

  const std::uint64_t width = png_get_image_width(png, info);
  const std::uint64_t height = png_get_image_height(png, info);
  // Rows are decoded one by one; an interlaced picture needs all of them at once, and a pointer to
  // each.
  const std::uint64_t row_bytes = 3 * width + sizeof(png_bytep);
  WEFT_CHECK(height <= options.max_bytes / row_bytes, Io, kOp, name, ": claims ", width, " x ",
             height, " pixels, over the limit of ", options.max_bytes, " bytes");
  // deflate expands by a factor of at most 1032.
  constexpr std::uint64_t kMostRatio = 1032;
  WEFT_CHECK(png_get_rowbytes(png, info) * height / kMostRatio <= bytes.size(), Io, kOp, name, ": ",
             bytes.size(), " bytes claim to hold ", width, " x ", height, " pixels");

  Image image;
  image.width = static_cast<int>(width);
  image.height = static_cast<int>(height);
  image.pixels.resize(3 * width * height);
  std::vector<png_bytep> rows(height);
  for (std::size_t y = 0; y < height; ++y) rows[y] = image.pixels.data() + 3 * width * y;
  const auto read_rows = [&] {
    png_set_expand(png);  // palettes, and grey of 1, 2 and 4 bits
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != 3 * width) png_error(png, "not convertible to RGB");
    png_read_image(png, rows.data());
    png_read_end(png, nullptr);
  };
  WEFT_CHECK(guarded(decoder, read_rows), Io, kOp, name, ": damaged: ", decoder.message);
  return image;
}

void write_png(const std::string& path, const Image& image) {
  WEFT_CHECK(image.width > 0 && image.height > 0 && (image.channels == 1 || image.channels == 3),
             InvalidArgument, kOp, "needs a positive size and 1 or 3 channels, got ", image.width,
             " x ", image.height, " x ", image.channels);
  const std::size_t row = static_cast<std::size_t>(image.width) * image.channels;
  WEFT_CHECK(image.pixels.size() == row * image.height, InvalidArgument, kOp, image.width, " x ",
             image.height, " x ", image.channels, " needs ", row * image.height, " bytes, got ",
             image.pixels.size());

  // libpng's simplified interface reports errors by return value, the classic one by longjmp.
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
  WEFT_CHECK(written != 0, Library, kOp, path, ": libpng: ", png.message);
  write_file_atomically(path, std::span<const std::byte>(file.data(), bytes));
}

void write_png(const std::string& path, const Tensor& x) {
  WEFT_CHECK(x.dtype() == DType::u8, Dtype, kOp, "needs u8, got ", x.dtype());
  const bool has_channels = x.dim() == 3;
  WEFT_CHECK(x.dim() == 2 || (has_channels && (x.shape(0) == 1 || x.shape(0) == 3)), Shape, kOp,
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
