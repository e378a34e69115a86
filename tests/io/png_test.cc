#include "weft/io/png.h"

#include <png.h>

#include <numeric>

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

using testing::TempFolder;

Image read(const std::string& path, int channels) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_file(&png, path.c_str()), 0) << png.message;
  EXPECT_EQ((png.format & PNG_FORMAT_FLAG_COLOR) != 0, channels == 3);
  png.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  Image image;
  image.width = static_cast<int>(png.width);
  image.height = static_cast<int>(png.height);
  image.channels = channels;
  image.pixels.resize(PNG_IMAGE_SIZE(png));
  EXPECT_NE(png_image_finish_read(&png, nullptr, image.pixels.data(), 0, nullptr), 0);
  return image;
}

TEST(Png, ReadsBackWhatWasWritten) {
  TempFolder folder;
  for (const int channels : {1, 3}) {
    Image image{.width = 7, .height = 5, .channels = channels, .pixels = {}};
    image.pixels.resize(static_cast<std::size_t>(35 * channels));
    std::iota(image.pixels.begin(), image.pixels.end(), std::uint8_t{100});
    const std::string path = folder.path("a.png");
    write_png(path, image);
    const Image back = read(path, channels);
    EXPECT_EQ(back.width, 7);
    EXPECT_EQ(back.height, 5);
    EXPECT_EQ(back.pixels, image.pixels);
  }
  EXPECT_EQ(folder.files(), 1);
}

TEST(Png, WritesTensors) {
  TempFolder folder;
  const std::string path = folder.path("a.png");
  const Tensor grey = from_vector(std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}, {2, 3});
  write_png(path, grey);
  EXPECT_EQ(read(path, 1).pixels, (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}));
  write_png(path, raw::transpose(grey, 0, 1));  // strided
  EXPECT_EQ(read(path, 1).pixels, (std::vector<std::uint8_t>{1, 4, 2, 5, 3, 6}));
  write_png(path, from_vector(std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}, {3, 1, 2}));
  EXPECT_EQ(read(path, 3).pixels, (std::vector<std::uint8_t>{1, 3, 5, 2, 4, 6}));
}

TEST(Png, RefusesWhatIsNoPicture) {
  TempFolder folder;
  const std::string path = folder.path("a.png");
  EXPECT_WEFT_ERROR(write_png(path, Image{}), InvalidArgument, "needs a positive size");
  EXPECT_WEFT_ERROR(write_png(path, Image{2, 2, 2, std::vector<std::uint8_t>(8)}), InvalidArgument,
                    "1 or 3 channels, got 2 x 2 x 2");
  EXPECT_WEFT_ERROR(write_png(path, Image{2, 2, 3, std::vector<std::uint8_t>(11)}), InvalidArgument,
                    "2 x 2 x 3 needs 12 bytes, got 11");
  EXPECT_WEFT_ERROR(write_png(path, zeros({2, 2})), Dtype, "needs u8, got f32");
  EXPECT_WEFT_ERROR(write_png(path, zeros({2, 2, 2}, DType::u8)), Shape, "got [2,2,2]");
  EXPECT_EQ(folder.files(), 0);
}

TEST(Png, KeepsTheOldPictureWhenTheNewOneCannotBeWritten) {
  TempFolder folder;
  const std::string path = folder.path("missing/a.png");
  EXPECT_WEFT_ERROR(write_png(path, Image{1, 1, 1, {0}}), Io, path);
}

}  // namespace
}  // namespace weft::io
