// Python's lmdb reads what weft wrote, with the code in data/lmdb.h, and weft reads what Python
// wrote.
#include <cstdlib>

#include "weft/data/lmdb.h"
#include "weft/io/png.h"
#include "weft/tests/io/files.h"

namespace weft::data {
namespace {

TEST(LmdbPeer, PythonReadsWeftsFilesAndBack) {
  const char* given = std::getenv("WEFT_PEER");
  if (given == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with lmdb and pillow";
  const std::string python = given;
  testing::TempFolder folder;
  const std::string path = folder.path("weft.lmdb"), back = folder.path("back");
  constexpr std::int64_t kSamples = 300;
  LmdbWriter writer(path);
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const std::string png = folder.path("one.png");
    io::write_png(png, io::Image{2, 1, 1, {static_cast<std::uint8_t>(i % 256), 9}});
    writer.add(i - 7, testing::as_bytes(testing::read_file(png)));
  }
  writer.commit();
  // The labels are one larger.
  ASSERT_EQ(std::system((python + " tests/data/lmdb_back.py " + path + " " + back).c_str()), 0);
  for (const std::string& again : {back + ".lmdb", back}) {  // a file, and a folder
    const Lmdb set(again);
    ASSERT_EQ(set.size(), kSamples);
    for (const std::int64_t i : {std::int64_t{0}, std::int64_t{255}, kSamples - 1}) {
      const auto [x, label] = set.get_batch(std::vector<std::int64_t>{i});
      EXPECT_EQ(label.item<std::int64_t>(), i - 6);
      EXPECT_EQ(x.to_vector<float>()[0], static_cast<float>(i % 256) / 255.0f);
    }
  }
}

}  // namespace
}  // namespace weft::data
