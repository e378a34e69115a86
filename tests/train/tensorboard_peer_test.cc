// TensorBoard from PyPI reads the event files: every scalar, and a resumed run as one curve.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "weft/tests/io/files.h"
#include "weft/train/tensorboard.h"

namespace weft::train {
namespace {

TEST(TensorBoardPeer, ScalarsAreExact) {
  const char* given = std::getenv("WEFT_PEER");
  if (given == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with tensorboard";
  const std::string python = given;
  const testing::TempFolder folder;
  using Curve = std::vector<std::pair<std::int64_t, float>>;
  Curve loss;
  {
    EventFile events(folder.path("events"));
    for (int step = 0; step < 1000; ++step) {
      if (step < 700) loss.emplace_back(step, 1.0f / static_cast<float>(step + 3));
      events.scalar("loss", 1.0 / (step + 3), step);
    }
    events.scalar("test/top1", 0.1, 699);
    events.scalar("test/top1", 0.2, 999);
  }
  {
    EventFile resumed(folder.path("events"), 700);
    for (int step = 700; step < 800; ++step) {
      loss.emplace_back(step, static_cast<float>(step));
      resumed.scalar("loss", step, step);
    }
  }
  const std::string out = folder.path("curves.json");
  ASSERT_EQ(std::system((python + " tests/train/read_events.py " + folder.path("events") + " " +
                         out + " 2>" + folder.path("log"))
                            .c_str()),
            0)
      << testing::read_file(folder.path("log"));
  const nlohmann::json curves = nlohmann::json::parse(testing::read_file(out));
  EXPECT_EQ(curves.size(), 2u);
  EXPECT_EQ(curves.at("loss").get<Curve>(), loss);
  EXPECT_EQ(curves.at("test/top1").get<Curve>(), (Curve{{699, 0.1f}}));
}

}  // namespace
}  // namespace weft::train
