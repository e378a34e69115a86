// Runs the program of docs/embedding.md that shares a CUDA stream with weft, on an emulated GPU.
#include <gtest/gtest.h>

#include <cstdio>

TEST(OwnStream, TheProgramPrintsTheSum) {
  std::FILE* const out = popen("tests/docs/own_stream", "r");
  ASSERT_NE(out, nullptr);
  char text[64] = {};
  EXPECT_NE(std::fgets(text, sizeof text, out), nullptr);
  EXPECT_EQ(pclose(out), 0);
  EXPECT_STREQ(text, "6\n");
}
