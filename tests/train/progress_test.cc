#include "weft/train/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "weft/tests/core/expect_error.h"

namespace weft::train {
namespace {

class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest() : file(std::tmpfile()) {}
  ~ProgressTest() override { std::fclose(file); }
  std::string text() const {
    std::string all;
    std::rewind(file);
    for (int c; (c = std::fgetc(file)) != EOF;) all += static_cast<char>(c);
    return all;
  }
  std::FILE* file;
};

TEST_F(ProgressTest, PlainLinesTenPerStretch) {
  Progress progress(file, false);
  progress.start("epoch 0", 1000, 0);
  int shown = 0;
  for (int i = 1; i <= 1000; ++i) {
    if (!progress.due(i)) continue;
    progress.update(i, 0.25, 3000);
    ++shown;
  }
  progress.finish(1000, 0.25, 3000, 12.34);
  EXPECT_EQ(shown, 9);
  const std::string out = text();
  EXPECT_LACKS(out, "\r");
  EXPECT_LACKS(out, "\x1b");
  EXPECT_HAS(out, "epoch 0   10%  100/1000  loss 0.25  3000 images/s  0:00:00 left\n");
  EXPECT_TRUE(out.ends_with("epoch 0  1000/1000  loss 0.25  3000 images/s  12.3 s\n")) << out;
}

TEST_F(ProgressTest, AShortStretchShowsEveryStep) {
  Progress progress(file, false);
  progress.start("e", 3, 0);
  EXPECT_TRUE(progress.due(1));
  EXPECT_FALSE(progress.due(3));  // finish() prints it
}

TEST_F(ProgressTest, LinesThatStay) {
  for (const bool terminal : {false, true}) {
    Progress progress(file, terminal);
    progress.start("epoch 2", 250, 0, 100);
    for (int i = 1; i <= 250; ++i) {
      if (i % 100 == 0) {
        EXPECT_TRUE(progress.due(i));
        progress.update(i, 0.5, 3000);
      } else if (!terminal) {
        EXPECT_FALSE(progress.due(i));
      }
    }
    const std::string out = text();
    EXPECT_HAS(out, "epoch 2  step 100/250  loss 0.5  0:00:00\n");
    EXPECT_TRUE(out.ends_with("epoch 2  step 200/250  loss 0.5  0:00:00\n")) << out;
  }
}

TEST_F(ProgressTest, ABarOnATerminal) {
  Progress progress(file, true);
  progress.start("epoch 1", 100, 50);
  EXPECT_TRUE(progress.due(51));
  progress.update(51, NAN, 10);
  EXPECT_FALSE(progress.due(52));  // ten times a second is enough
  progress.abandon();
  const std::string out = text();
  EXPECT_EQ(out.substr(0, 4), "\r\x1b[K");
  EXPECT_HAS(out, "51%  51/100  loss nan");
  EXPECT_EQ(out.back(), '\n');
}

// At any width the line fits, and the last column stays free.
TEST_F(ProgressTest, ALineNeverWraps) {
  const auto shown = [&](int columns) {
    const auto before = text().size();
    Progress progress(file, true, columns);
    progress.start("epoch 1", 1875, 0);
    progress.update(938, 0.01985, 3043);
    return text().substr(before + std::string("\r\x1b[K").size());
  };
  for (int columns = 1; columns <= 200; ++columns) {
    const std::string line = shown(columns);
    EXPECT_LT(static_cast<int>(line.size()), columns) << line;
    EXPECT_LE(static_cast<int>(line.size()), 110);  // the bar has at most 40
  }
  EXPECT_EQ(shown(100),
            "epoch 1  [==============>..............]   50%  938/1875  loss 0.01985  "
            "3043 images/s  0:00:00 left");
  EXPECT_EQ(shown(67), "epoch 1   50%  938/1875  loss 0.01985  3043 images/s  0:00:00 left");
  EXPECT_EQ(shown(60), "epoch 1   50%  938/1875  loss 0.01985  0:00:00 left");
  EXPECT_EQ(shown(45), "epoch 1   50%  loss 0.01985  0:00:00 left");
  EXPECT_EQ(shown(40), "epoch 1   50%  loss 0.01985");
  EXPECT_EQ(shown(14), "epoch 1   50%");
  EXPECT_EQ(shown(9), "epoch 1 ");
}

TEST(Progress, Durations) {
  EXPECT_EQ(format_duration(0.4), "0:00:00");
  EXPECT_EQ(format_duration(59.6), "0:01:00");
  EXPECT_EQ(format_duration(3 * 3600 + 25 * 60 + 45), "3:25:45");
  EXPECT_EQ(format_duration(NAN), "?");
  EXPECT_EQ(format_duration(-1), "?");
}

}  // namespace
}  // namespace weft::train
