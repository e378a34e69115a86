// Reading JPEG and PNG: the same pixels as Pillow, and an error for everything else.
#include "weft/io/read_image.h"

#include <algorithm>
#include <map>

#include "weft/io/jpeg.h"
#include "weft/io/png.h"
#include "weft/io/safetensors.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

using testing::as_bytes;
using testing::CheapScope;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

const std::string kGoldens = "tests/io/goldens/";

Image parse(std::string_view file, const ImageOptions& options = {}) {
  return parse_image(as_bytes(file), options, "picture");
}

TEST(ReadImage, GivesPillowsPixels) {
  const auto goldens = load_safetensors(kGoldens + "pictures.safetensors").tensors;
  EXPECT_EQ(goldens.size(), 19u);
  for (const auto& [name, golden] : goldens) {
    SCOPED_TRACE(name);
    const Image image = read_image(kGoldens + name);
    EXPECT_EQ(Shape({image.height, image.width, image.channels}), golden.shape());
    const auto want = golden.to_vector<std::uint8_t>();
    // Exact: both decode with libjpeg-turbo, whose integer transform is the same in all versions.
    EXPECT_EQ(image.pixels, want);
  }
}

TEST(ReadImage, ReadsWhatWritePngWrites) {
  TempFolder folder;
  const std::string path = folder.path("a.png");
  write_png(path, Image{2, 1, 3, {1, 2, 3, 4, 5, 6}});
  EXPECT_EQ(read_image(path).pixels, (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}));
  write_png(path, Image{2, 1, 1, {7, 9}});
  EXPECT_EQ(read_image(path).pixels, (std::vector<std::uint8_t>{7, 7, 7, 9, 9, 9}));
}

TEST(ReadImage, KnowsFilesByTheirFirstBytes) {
  const CheapScope cheap;
  TempFolder folder;
  const std::string path = folder.path("photo.jpg");
  write_file(path, read_file(kGoldens + "rgb.png"));
  EXPECT_EQ(read_image(path).width, 21);
  write_file(path, "GIF89a");
  EXPECT_WEFT_ERROR(read_image(path), Io, path + ": neither a JPEG nor a PNG file");
  write_file(path, "");
  EXPECT_WEFT_ERROR(read_image(path), Io, path + ": empty file");
  EXPECT_WEFT_ERROR(read_image(folder.root()), Io, "not a regular file");
  EXPECT_WEFT_ERROR(read_image(folder.path("none.jpg")), Io, "none.jpg: cannot open");
  write_file(path, read_file(kGoldens + "rgb.png"));
  EXPECT_WEFT_ERROR(read_image(path, {.max_bytes = 100}), Io, "bytes are over the limit of 100");
}

TEST(ReadImage, RefusesFilesCutOffAnywhere) {
  const CheapScope cheap;
  for (const char* name :
       {"420.jpg", "progressive.jpg", "restart.jpg", "rgb.png", "palette.png", "interlaced.png"}) {
    const std::string good = read_file(kGoldens + name);
    SCOPED_TRACE(name);
    for (std::size_t size = 4; size < good.size(); ++size) {
      EXPECT_WEFT_ERROR(parse(good.substr(0, size)), Io, "picture: ");
    }
  }
  EXPECT_WEFT_ERROR(parse(read_file(kGoldens + "420.jpg").substr(0, 700)), Io,
                    "cut off: Premature end of JPEG file");
  EXPECT_WEFT_ERROR(parse(read_file(kGoldens + "rgb.png").substr(0, 100)), Io, "damaged: cut off");
}

// Each byte is changed to three other values: either an error or a picture, never beyond the
// limits.
TEST(ReadImage, SurvivesEveryChangedByte) {
  for (const char* name : {"420.jpg", "progressive.jpg", "cmyk.jpg", "rgb.png", "palette4.png"}) {
    const std::string good = read_file(kGoldens + name);
    int refused = 0;
    for (std::size_t at = 0; at < good.size(); ++at) {
      for (const int change : {1, 0x80, 0xff}) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ change);
        try {
          parse(bad, {.max_bytes = 1 << 20});
        } catch (const Error& error) {
          ++refused;
          EXPECT_TRUE(error.code() == ErrorCode::Io || error.code() == ErrorCode::Unsupported)
              << error.what();
        }
      }
    }
    EXPECT_GT(refused, 100) << name;
  }
}

/// `file` with two big-endian numbers of `bytes` bytes each replaced at `at`.
std::string with_size(std::string file, std::size_t at, int bytes, std::uint32_t first,
                      std::uint32_t second) {
  for (const std::uint32_t value : {first, second}) {
    for (int i = 0; i < bytes; ++i) {
      file[at++] = static_cast<char>(value >> 8 * (bytes - 1 - i) & 0xff);
    }
  }
  return file;
}

/// The position of the height in a JPEG's frame header.
std::size_t frame_size(const std::string& file, char marker) {
  return file.find(std::string{'\xff', marker}) + 5;
}

TEST(ReadImage, RefusesLyingSizes) {
  const CheapScope cheap;
  const std::string jpeg = read_file(kGoldens + "420.jpg");
  const std::size_t at = frame_size(jpeg, '\xc0');
  EXPECT_WEFT_ERROR(parse(with_size(jpeg, at, 2, 65000, 65000)), Io,
                    "claims 65000 x 65000 pixels, over the limit of 234881024 bytes");
  EXPECT_WEFT_ERROR(parse(with_size(jpeg, at, 2, 8000, 9000)), Io,
                    "bytes claim to hold 9000 x 8000 pixels");
  EXPECT_WEFT_ERROR(parse(with_size(jpeg, at, 2, 2000, 2000)), Io, "damaged: ");
  EXPECT_WEFT_ERROR(parse(with_size(jpeg, at, 2, 0, 21)), Io, "damaged: ");
  const std::string progressive = read_file(kGoldens + "progressive.jpg");
  const std::string wide = with_size(progressive, frame_size(progressive, '\xc2'), 2, 1000, 1000);
  EXPECT_WEFT_ERROR(parse(wide, {.max_bytes = 4'000'000}), Io,
                    "a progressive picture of 1000 x 1000 takes more memory than the limit of "
                    "4000000 bytes");

  const auto lying_png = [](std::uint32_t width, std::uint32_t height) {
    std::string png = with_size(read_file(kGoldens + "rgb.png"), 16, 4, width, height);
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(png.data() + 12), 17);
    return with_size(png, 29, 2, static_cast<std::uint32_t>(crc >> 16), crc & 0xffff);
  };
  EXPECT_WEFT_ERROR(parse(lying_png(0x7fffffff, 0x7fffffff)), Io,
                    "claims 2147483647 x 2147483647 pixels, over the limit of 234881024 bytes");
  EXPECT_WEFT_ERROR(parse(lying_png(8000, 9000)), Io, "bytes claim to hold 8000 x 9000 pixels");
  EXPECT_WEFT_ERROR(parse(lying_png(1, 50'000'000)), Io, "over the limit");
  EXPECT_WEFT_ERROR(parse(lying_png(21, 19)), Io, "damaged: ");
  EXPECT_WEFT_ERROR(parse(with_size(read_file(kGoldens + "rgb.png"), 16, 4, 21, 19)), Io,
                    "damaged: IHDR: CRC error");
}

// The same scan many times, each over the whole picture.
TEST(ReadImage, RefusesAJpegOfRepeatedScans) {
  const CheapScope cheap;
  std::string file = read_file(kGoldens + "progressive.jpg");
  const std::size_t scan = file.find("\xff\xda");
  const std::size_t next =
      std::min(file.find("\xff\xda", scan + 2), file.find("\xff\xc4", scan + 2));
  const std::string first = file.substr(scan, next - scan);
  std::string many = file.substr(0, scan);
  for (int i = 0; i < 200; ++i) many += first;
  EXPECT_WEFT_ERROR(parse(many + "\xff\xd9"), Io, "damaged: ");
}

TEST(ReadImage, RefusesKindsItDoesNotRead) {
  std::string arithmetic = read_file(kGoldens + "420.jpg");
  arithmetic[frame_size(arithmetic, '\xc0') - 4] = '\xc9';
  EXPECT_WEFT_ERROR(parse(arithmetic), Unsupported, "arithmetically coded");
  std::string deep = read_file(kGoldens + "420.jpg");
  deep[frame_size(deep, '\xc0') - 1] = 12;
  EXPECT_WEFT_ERROR(parse(deep), Unsupported, "weft reads 8 bits per channel");
}

}  // namespace
}  // namespace weft::io
