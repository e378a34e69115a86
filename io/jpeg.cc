#include "weft/io/jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>

// After <cstdio>: its declarations need FILE.
#include <jerror.h>
#include <jpeglib.h>

#include <limits>

#include "weft/core/base/error.h"

namespace weft::io {
namespace {

constexpr const char* kOp = "jpeg";

// libjpeg reports an error by a function that must not return: ours jumps back to guarded(), only
// over C frames. The code that is jumped over must have no destructors to run.
struct Decoder {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf escape;
  int code = 0;
  char message[JMSG_LENGTH_MAX] = "";

  Decoder() {
    info.err = jpeg_std_error(&errors);
    errors.error_exit = fail;
    errors.emit_message = warn;
    errors.output_message = [](j_common_ptr) {};
    info.client_data = this;
  }
  ~Decoder() { jpeg_destroy_decompress(&info); }  // also allowed if it was never created
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  [[noreturn]] static void fail(j_common_ptr common) {
    Decoder& self = *static_cast<Decoder*>(common->client_data);
    self.code = self.errors.msg_code;
    self.errors.format_message(common, self.message);
    std::longjmp(self.escape, 1);
  }

  static void warn(j_common_ptr common, int level) {
    if (level >= 0) return;  // a trace message
    const int code = common->err->msg_code;
    // These warnings leave every pixel correct.
    if (code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR) return;
    fail(common);
  }

  // A progressive file may refine the picture in any number of scans of a few bytes each, and each
  // scan processes the whole picture. Encoders write about 10.
  static void watch(j_common_ptr common) {
    constexpr int kMostScans = 100;
    Decoder& self = *static_cast<Decoder*>(common->client_data);
    if (self.info.input_scan_number <= kMostScans) return;
    std::snprintf(self.message, sizeof self.message, "more than %d scans", kMostScans);
    std::longjmp(self.escape, 1);
  }
};

/// Returns whether f() ran to its end without an error from libjpeg.
template <class F>
bool guarded(Decoder& decoder, F&& f) {
  if (setjmp(decoder.escape) != 0) return false;
  f();
  return true;
}

[[noreturn]] void refuse(const Decoder& decoder, const ImageOptions& options,
                         const std::string& name) {
  WEFT_CHECK(decoder.code != JERR_OUT_OF_MEMORY, OutOfMemory, kOp, name, ": no memory for libjpeg");
  WEFT_CHECK(decoder.code != JERR_BAD_PRECISION, Unsupported, kOp, name,
             ": weft reads 8 bits per channel; libjpeg: ", decoder.message);
  WEFT_CHECK(decoder.code != JERR_NO_BACKING_STORE, Io, kOp, name, ": a progressive picture of ",
             decoder.info.image_width, " x ", decoder.info.image_height,
             " takes more memory than the limit of ", options.max_bytes, " bytes");
  WEFT_CHECK(decoder.code != JWRN_JPEG_EOF, Io, kOp, name, ": cut off: ", decoder.message);
  WEFT_THROW(Io, kOp, name, ": damaged: ", decoder.message);
}

// Adobe's files contain 255 - c, m, y, k. Converts like Pillow: rgb = (1 - k) - (1 - k) cmy, in
// bytes.
void cmyk_to_rgb(const std::uint8_t* in, std::uint8_t* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i, in += 4, out += 3) {
    const int white = in[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - in[c]) * white + 128;
      out[c] = static_cast<std::uint8_t>(white - (((product >> 8) + product) >> 8));
    }
  }
}

}  // namespace

Image parse_jpeg(std::span<const std::byte> bytes, const ImageOptions& options,
                 const std::string& name) {
  WEFT_CHECK(!bytes.empty(), Io, kOp, name, ": empty file");
  Decoder decoder;
  jpeg_decompress_struct& info = decoder.info;
  const auto read_header = [&] {
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info, TRUE);
  };
  if (!guarded(decoder, read_header)) refuse(decoder, options, name);

  WEFT_CHECK(!info.arith_code, Unsupported, kOp, name,
             ": is arithmetically coded; weft reads Huffman-coded files");
  const std::uint64_t pixels = std::uint64_t{info.image_width} * info.image_height;
  const std::uint64_t image_bytes = 3 * pixels;
  WEFT_CHECK(image_bytes <= options.max_bytes, Io, kOp, name, ": claims ", info.image_width, " x ",
             info.image_height, " pixels, over the limit of ", options.max_bytes, " bytes");
  // A block of 8 x 8 needs at least one bit, and none covers more than 32 x 32 pixels.
  constexpr std::uint64_t kUnsuspicious = 1 << 22, kMostPerByte = 8 * 32 * 32;
  WEFT_CHECK(pixels <= kUnsuspicious || pixels / kMostPerByte <= bytes.size(), Io, kOp, name, ": ",
             bytes.size(), " bytes claim to hold ", info.image_width, " x ", info.image_height,
             " pixels");

  Image image;
  image.width = static_cast<int>(info.image_width);
  image.height = static_cast<int>(info.image_height);
  image.pixels.resize(image_bytes);
  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  std::vector<std::uint8_t> cmyk_row(cmyk ? 4 * std::size_t{info.image_width} : 0);
  const std::size_t stride = 3 * std::size_t{info.image_width};
  const auto read_rows = [&] {
    info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    decoder.progress.progress_monitor = Decoder::watch;
    info.progress = &decoder.progress;
    info.mem->max_memory_to_use = static_cast<long>(
        std::min<std::uint64_t>(options.max_bytes - image_bytes, std::numeric_limits<long>::max()));
    // 0 would mean no limit.
    if (info.mem->max_memory_to_use == 0) info.mem->max_memory_to_use = 1;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      std::uint8_t* row = image.pixels.data() + info.output_scanline * stride;
      JSAMPROW target = cmyk ? cmyk_row.data() : row;
      jpeg_read_scanlines(&info, &target, 1);
      if (cmyk) cmyk_to_rgb(cmyk_row.data(), row, image.width);
    }
    jpeg_finish_decompress(&info);
  };
  if (!guarded(decoder, read_rows)) refuse(decoder, options, name);
  return image;
}

}  // namespace weft::io
