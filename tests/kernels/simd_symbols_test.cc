// The objects compiled for AVX share no function with the rest of the program: an inline function
// that was not inlined there could become everybody's copy, and an older processor's last one.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace {

std::string run(const std::string& command) {
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return "popen failed";
  for (char line[4096]; std::fgets(line, sizeof line, pipe);) out += line;
  EXPECT_EQ(pclose(pipe), 0) << command;
  return out;
}

TEST(SimdSymbols, NoWeakFunctionsInWiderObjects) {
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    defined(__clang__)
  GTEST_SKIP() << "only gcc's optimised objects are what programs are made of";
#endif
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator("kernels/cpu")) {
    const std::string file = entry.path();
    if (file.find("_avx") == std::string::npos || entry.path().extension() != ".a") continue;
    ++seen;
    // Letters of weak definitions: W and V, u for the unique ones of templates.
    EXPECT_EQ(run("nm -C --defined-only " + file + " | grep -E ' [WVu] ' || true"), "") << file;
  }
  EXPECT_EQ(seen, 4);
}

}  // namespace
