// The input of the loader benchmark, and its report.
#include "weft/benchmarks/loader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/io/jpeg.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::bench {
namespace {

constexpr LoaderSets::Counts kFew = {.mnist = 70, .cifar = 70, .pictures = 9};

TEST(LoaderSets, PicturesAreOneRowForEver) {
  const std::vector<unsigned char> jpeg = encode_picture(5);
  EXPECT_EQ(jpeg, encode_picture(5));
  EXPECT_NE(jpeg, encode_picture(14));  // of the same size
  const io::Image image = io::parse_jpeg(std::as_bytes(std::span(jpeg)));
  EXPECT_EQ(image.height, 288);
  EXPECT_EQ(image.width, 256);
  // libjpeg alone can decode it.
  std::vector<unsigned char> pixels;
  decode_picture(jpeg, pixels);
  EXPECT_EQ(pixels, image.pixels);
  // As many bits per pixel as a photograph, unlike a plain surface or noise.
  const double bits = 8.0 * static_cast<double>(jpeg.size()) / (288 * 256);
  EXPECT_GT(bits, 1);
  EXPECT_LT(bits, 4);
}

TEST(LoaderSets, AreGoneWithTheObject) {
  std::string folder;
  {
    const LoaderSets sets(kFew);
    folder = sets.folder();
    EXPECT_TRUE(std::filesystem::exists(folder + "/odd/7.jpg"));
    EXPECT_EQ(sets.jpegs().size(), 9U);
  }
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(folder).parent_path()));
}

TEST(Loader, EveryCaseHandsOutAllImages) {
  const LoaderSets sets(kFew);
  for (const int workers : {0, 2}) {
    for (const std::string& name : kLoaderCases) {
      const auto epoch = loader_epoch(name, sets, workers);
      const std::int64_t images = name.starts_with("folder") ? 9 : 70;
      EXPECT_EQ(epoch(), images) << name;
      EXPECT_EQ(epoch(), images) << name << ", second epoch";
    }
  }
  EXPECT_WEFT_ERROR(loader_epoch("mnist-16", sets, 0), InvalidArgument, "no loader case mnist-16");
}

void expect_quartiles(const nlohmann::json& q) {
  EXPECT_GT(q.at("low").get<double>(), 0);
  EXPECT_LE(q.at("low").get<double>(), q.at("median").get<double>());
  EXPECT_LE(q.at("median").get<double>(), q.at("high").get<double>());
}

TEST(Loader, ReportsARowForEachCaseAndWorkers) {
  const nlohmann::json result = run_loader(3, nullptr, kFew);
  ASSERT_EQ(result.at("rows").size(), 12U);
  for (const auto& row : result["rows"]) {
    expect_quartiles(row.at("weft_per_second"));
    EXPECT_FALSE(row.contains("ratio"));
    EXPECT_EQ(row.contains("decode_per_second"), row.at("case") == "folder-8");
  }
  expect_quartiles(result["rows"][11].at("decode_per_second"));
  EXPECT_EQ(result["rows"][11].at("case"), "folder-8");
  EXPECT_EQ(result["rows"][11].at("batch_size"), 8);
  EXPECT_EQ(result["rows"][11].at("workers"), 2);
  EXPECT_EQ(result["rows"][11].at("images"), 9);
  EXPECT_TRUE(result.at("jpeg_library").get<std::string>().starts_with("libjpeg-turbo "));
}

TEST(Loader, ComparesWhatThePeerCanAndSaysWhatItCannot) {
  testing::TempFolder folder;
  const std::string script = folder.path("peer.sh");
  testing::write_file(script, R"(
while read -r request; do
  case $request in
    *'"case":"folder'*) echo '{"error": "no torchvision here"}' ;;
    *'"cmd":"loader"'*) echo '{"config": "tensors", "tried": {"tensors": 2.0}}' ;;
    *) echo '{"per_second": 0.5}' ;;
  esac
done
)");
  Peer peer({"/bin/sh", script});
  const nlohmann::json result = run_loader(2, &peer, kFew);
  for (const auto& row : result.at("rows")) {
    if (row.at("case") == "folder-8") {
      EXPECT_EQ(row.at("peer_error"), "no torchvision here");
      EXPECT_FALSE(row.contains("ratio"));
      continue;
    }
    EXPECT_EQ(row.at("peer_config"), "tensors");
    EXPECT_EQ(row.at("peer_per_second").at("median"), 0.5);
    expect_quartiles(row.at("ratio"));
    EXPECT_GT(row.at("ratio").at("median").get<double>(), 1);  // weft's rate divided by the peer's
  }
}

}  // namespace
}  // namespace weft::bench
