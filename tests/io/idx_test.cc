#include "weft/io/idx.h"

#include <sys/stat.h>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

using testing::as_bytes;
using testing::CheapScope;
using testing::gzip;
using testing::gzip_bomb;
using testing::idx_header;
using testing::TempFolder;
using testing::write_file;

Tensor parse(std::string_view file) { return parse_idx(as_bytes(file)); }

const std::string kSix = idx_header({2, 3}) + "abcdef";

TEST(Idx, ReadsPlainAndGzip) {
  for (const std::string& file : {kSix, gzip(kSix), gzip(kSix, 0)}) {
    const Tensor x = parse(file);
    EXPECT_EQ(x.shape(), Shape({2, 3}));
    EXPECT_EQ(x.dtype(), DType::u8);
    EXPECT_EQ(x.to_vector<std::uint8_t>(),
              (std::vector<std::uint8_t>{'a', 'b', 'c', 'd', 'e', 'f'}));
  }
}

TEST(Idx, ReadsFilesByTheirFirstBytesNotTheirNames) {
  TempFolder folder;
  write_file(folder.path("zipped"), gzip(kSix));
  write_file(folder.path("plain.gz"), kSix);
  EXPECT_EQ(read_idx(folder.path("zipped")).shape(), Shape({2, 3}));
  EXPECT_EQ(read_idx(folder.path("plain.gz")).shape(), Shape({2, 3}));
}

TEST(Idx, ReadsOneToFourDimensionsAndNoValues) {
  EXPECT_EQ(parse(idx_header({1}) + "a").shape(), Shape({1}));
  EXPECT_EQ(parse(idx_header({1, 1, 2, 1}) + "ab").shape(), Shape({1, 1, 2, 1}));
  EXPECT_EQ(parse(idx_header({0, 28, 28})).shape(), Shape({0, 28, 28}));
  EXPECT_EQ(parse(gzip(idx_header({0}))).shape(), Shape({0}));
}

TEST(Idx, ReadsDataLargerThanTheInflatingBuffer) {
  std::string values(300'000, '\0');
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i * i % 251);
  const Tensor x = parse(gzip(idx_header({300'000}) + values));
  EXPECT_EQ(std::memcmp(x.raw_data(), values.data(), values.size()), 0);
}

TEST(Idx, RefusesWhatIsNoIdxFile) {
  const CheapScope cheap;
  EXPECT_WEFT_ERROR(parse(""), Io, "empty file");
  EXPECT_WEFT_ERROR(parse(std::string("\0\0\x08", 3)), Io, "3 bytes are too few for a header");
  EXPECT_WEFT_ERROR(parse("PNG and so on"), Io, "not an IDX file: it begins with 80 78 71 32");
  EXPECT_WEFT_ERROR(parse(idx_header({1}, 0x0a) + "a"), Io,
                    "not an IDX file: it begins with 0 0 10");
  EXPECT_WEFT_ERROR(parse(idx_header({1}, 0x0d) + "abcd"), Unsupported, "holds f32 values");
  EXPECT_WEFT_ERROR(parse(idx_header({}) + "a"), Io, "claims 0 dimensions, 1 to 4 are allowed");
  EXPECT_WEFT_ERROR(parse(idx_header({1, 1, 1, 1, 1}) + "a"), Io, "claims 5 dimensions");
  EXPECT_WEFT_ERROR(parse(idx_header({2, 3}).substr(0, 10)), Io, "cut off inside its header");
}

TEST(Idx, RefusesLyingCounts) {
  const CheapScope cheap;
  EXPECT_WEFT_ERROR(parse(idx_header({2, 3}) + "abcde"), Io,
                    "the header promises 6 values ([2,3]), the file holds 5");
  EXPECT_WEFT_ERROR(parse(idx_header({2, 3}) + "abcdefg"), Io, "the file holds 7");
  EXPECT_WEFT_ERROR(parse(gzip(idx_header({2, 3}) + "abcde")), Io, "the file holds 5");
  EXPECT_WEFT_ERROR(parse(gzip(kSix + "g")), Io, "holds more than the 6 values ([2,3])");
  // 4 billion cubed: the product does not fit in 64 bits.
  const std::uint32_t most = 0xffffffff;
  EXPECT_WEFT_ERROR(parse(idx_header({most, most, most, most})), Io,
                    "over the limit of 1073741824");
  EXPECT_WEFT_ERROR(parse(idx_header({most, most, most, 0})), Io, "over the limit");
  EXPECT_WEFT_ERROR(parse(idx_header({0, most, most, most})), Io, "over the limit");
  EXPECT_WEFT_ERROR(parse(idx_header({1u << 30})), Io, "the file holds 0");
  EXPECT_WEFT_ERROR(parse(idx_header({(1u << 30) + 1})), Io, "over the limit of 1073741824");
  EXPECT_WEFT_ERROR(parse_idx(as_bytes(kSix), {.max_bytes = 5}), Io, "over the limit of 5 bytes");
}

TEST(Idx, RefusesDamagedGzip) {
  const CheapScope cheap;
  const std::string good = gzip(kSix);
  for (std::size_t size = 2; size < good.size(); ++size) {
    EXPECT_WEFT_ERROR(parse(good.substr(0, size)), Io, "cut off inside the compressed data");
  }
  std::string bad = good;
  bad[bad.size() - 8] ^= 1;  // CRC-32
  EXPECT_WEFT_ERROR(parse(bad), Io, "damaged: incorrect data check");
  bad = good;
  bad[bad.size() - 1] ^= 1;  // ISIZE
  EXPECT_WEFT_ERROR(parse(bad), Io, "damaged: incorrect length check");
  bad = good;
  bad[2] = 7;
  EXPECT_WEFT_ERROR(parse(bad), Io, "damaged: unknown compression method");
  bad = good;
  bad[10] = '\x07';  // block type 3
  EXPECT_WEFT_ERROR(parse(bad), Io, "damaged: invalid block type");
  EXPECT_WEFT_ERROR(parse(good + "x"), Io, "bytes follow the end of the compressed data");
  EXPECT_WEFT_ERROR(parse(good + good), Io, "bytes follow the end of the compressed data");
  EXPECT_WEFT_ERROR(parse(good + std::string(70'000, '\0')), Io, "bytes follow the end");
}

TEST(Idx, BombsCostNothing) {
  const std::string bomb = gzip_bomb(idx_header({60000, 28, 28}), std::uint64_t{1} << 30);
  const std::string promise = gzip_bomb(idx_header({1u << 30}), 100 << 20);
  const CheapScope cheap;
  EXPECT_WEFT_ERROR(parse(bomb), Io, "holds more than the 47040000 values");
  EXPECT_WEFT_ERROR(parse(promise), Io, "over the limit of 64:1");
}

TEST(Idx, RefusesWhatIsNoFile) {
  const CheapScope cheap;
  TempFolder folder;
  EXPECT_WEFT_ERROR(read_idx(folder.path("none")), Io,
                    folder.path("none") + ": cannot open: No such file or directory");
  EXPECT_WEFT_ERROR(read_idx(folder.root()), Io, "not a regular file");
  EXPECT_WEFT_ERROR(read_idx("/dev/zero"), Io, "not a regular file");
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_WEFT_ERROR(read_idx(folder.path("pipe")), Io, "not a regular file");
}

TEST(Idx, LargeFilesAreRefusedUnread) {
  TempFolder folder;
  write_file(folder.path("sparse"), kSix);
  std::filesystem::resize_file(folder.path("sparse"), std::uint64_t{20} << 30);
  const CheapScope cheap;
  EXPECT_WEFT_ERROR(read_idx(folder.path("sparse")), Io, "the file holds 21474836468");
}

}  // namespace
}  // namespace weft::io
