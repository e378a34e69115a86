#include "weft/io/cifar.h"

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

using testing::as_bytes;
using testing::CheapScope;
using testing::TempFolder;
using testing::write_file;

constexpr std::size_t kPixels = 3072;

std::string record(std::string labels, int shade) {
  std::string pixels(kPixels, static_cast<char>(shade));
  pixels.front() = 1;
  pixels.back() = 2;
  return labels + pixels;
}

CifarImages parse(std::string_view file, CifarKind kind = CifarKind::Cifar10) {
  return parse_cifar(as_bytes(file), kind);
}

TEST(Cifar, TakesRecordsApart) {
  const CifarImages ten = parse(record("\3", 50) + record("\11", 60));
  EXPECT_EQ(ten.images.shape(), Shape({2, 3, 32, 32}));
  EXPECT_EQ(ten.labels.to_vector<std::uint8_t>(), (std::vector<std::uint8_t>{3, 9}));
  EXPECT_FALSE(ten.coarse_labels.defined());
  const auto pixels = ten.images.to_vector<std::uint8_t>();
  EXPECT_EQ(pixels[0], 1);
  EXPECT_EQ(pixels[1], 50);
  EXPECT_EQ(pixels[kPixels - 1], 2);
  EXPECT_EQ(pixels[kPixels], 1);
  EXPECT_EQ(pixels[kPixels + 1], 60);

  const CifarImages hundred = parse(record("\23\143", 50), CifarKind::Cifar100);
  EXPECT_EQ(hundred.labels.to_vector<std::uint8_t>(), (std::vector<std::uint8_t>{99}));
  EXPECT_EQ(hundred.coarse_labels.to_vector<std::uint8_t>(), (std::vector<std::uint8_t>{19}));
  EXPECT_EQ(hundred.images.to_vector<std::uint8_t>()[1], 50);
}

TEST(Cifar, ReadsFilesOneAfterTheOther) {
  TempFolder folder;
  std::string many;  // more than are read at once
  for (int i = 0; i < 600; ++i) many += record(std::string(1, static_cast<char>(i % 10)), i % 251);
  write_file(folder.path("a"), record("\7", 9));
  write_file(folder.path("b"), many);
  const std::vector<std::string> paths = {folder.path("a"), folder.path("b")};
  const CifarImages set = read_cifar(paths, CifarKind::Cifar10);
  const auto labels = set.labels.to_vector<std::uint8_t>();
  const auto pixels = set.images.to_vector<std::uint8_t>();
  ASSERT_EQ(labels.size(), 601u);
  EXPECT_EQ(labels[0], 7);
  EXPECT_EQ(pixels[5], 9);
  for (std::size_t i = 0; i < 600; ++i) {
    EXPECT_EQ(labels[i + 1], i % 10);
    EXPECT_EQ(pixels[(i + 1) * kPixels + 5], i % 251);
  }
}

TEST(Cifar, RefusesWrongSizesAndLabels) {
  const CheapScope cheap;
  const std::string good = record("\1", 5);
  EXPECT_WEFT_ERROR(parse(""), Io, "empty file");
  EXPECT_WEFT_ERROR(
      parse(good.substr(1)), Io,
      "3072 bytes are no whole number of CIFAR-10's records of 3073 bytes (0 and 3072 "
      "bytes)");
  EXPECT_WEFT_ERROR(parse(good + "x"), Io, "(1 and 1 bytes)");
  EXPECT_WEFT_ERROR(parse(good, CifarKind::Cifar100), Io, "CIFAR-100's records of 3074 bytes");
  EXPECT_WEFT_ERROR(parse(good + record("\12", 5)), Io, "label 10 of image 1 is not in 0 to 9");
  EXPECT_WEFT_ERROR(parse(record("\1\144", 5), CifarKind::Cifar100), Io,
                    "label 100 of image 0 is not in 0 to 99");
  EXPECT_WEFT_ERROR(parse(record("\24\1", 5), CifarKind::Cifar100), Io,
                    "coarse label 20 of image 0 is not in 0 to 19");
  // A sparse file: its size is 10 GB, but it uses no disk space.
  TempFolder folder;
  const std::string path = folder.path("huge");
  write_file(path, "");
  std::filesystem::resize_file(path, 3073ull * 3'500'000);
  EXPECT_WEFT_ERROR(read_cifar(std::vector{path}, CifarKind::Cifar10), Io,
                    "3500000 images, over the limit of 349525");
}

}  // namespace
}  // namespace weft::io
