// No code compiled for more than the baseline runs before the processor has been checked. As far as
// the objects show: code compiled for AVX is reached only through tables, and no other object
// contains AVX.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace {

/// Calls f with each line of the command's output.
template <class F>
void for_each_line(const std::string& command, F&& f) {
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_TRUE(pipe) << command;
  for (char line[1 << 14]; std::fgets(line, sizeof line, pipe);) f(std::string(line));
  EXPECT_EQ(pclose(pipe), 0) << command;
}

std::string output(const std::string& command) {
  std::string out;
  for_each_line(command, [&](const std::string& line) { out += line; });
  return out;
}

/// The archives of the libraries compiled for AVX, or those of all others.
std::vector<std::string> archives(bool wide) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(".")) {
    const std::string file = entry.path();
    const bool is_wide = file.find("_avx") != std::string::npos;
    const std::string kind = entry.path().extension();
    if ((kind == ".a" || kind == ".lo") && is_wide == wide) found.push_back(file);
  }
  return found;
}

class SimdSymbols : public ::testing::Test {
 protected:
  void SetUp() override {
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    defined(__clang__)
    GTEST_SKIP() << "only gcc's optimised objects are what programs are made of";
#endif
#if !defined(__x86_64__)
    GTEST_SKIP() << "one instruction set";
#endif
  }
};

// An inline function that was not inlined there could become the only copy of the program, and
// crash on an older processor. Letters of weak definitions: W and V, and u for the unique ones of
// templates.
TEST_F(SimdSymbols, WiderObjectsDefineNothingWeak) {
  const auto files = archives(true);
  EXPECT_EQ(files.size(), 4u);
  for (const std::string& file : files) {
    EXPECT_EQ(output("nm -C --defined-only " + file + " | grep -E ' [WVu] ' || true"), "") << file;
  }
}

// A caller must have checked the processor before, or it crashes.
TEST_F(SimdSymbols, WiderObjectsExportDataOnly) {
  for (const std::string& file : archives(true)) {
    EXPECT_EQ(output("nm -C --defined-only --extern-only " + file + " | grep -E ' [Ti] ' || true"),
              "")
        << file;
    EXPECT_NE(output("nm -C --defined-only --extern-only " + file + " | grep _loops || true"), "")
        << file;
  }
}

TEST_F(SimdSymbols, WiderObjectsRunNothingAtStart) {
  for (const std::string& file : archives(true)) {
    EXPECT_EQ(output("objdump -h " + file + " | grep -E '[.](init|ctors|text[.]startup)' || true"),
              "")
        << file;
  }
}

/// The functions with an AVX instruction: these begin with v or use a register that no other has.
std::set<std::string> wide_functions(const std::string& file) {
  std::set<std::string> found;
  std::string function;
  for_each_line("objdump -d -C -w --no-show-raw-insn " + file, [&](const std::string& line) {
    const auto name = line.find(" <");
    if (!line.empty() && line[0] != ' ' && name != std::string::npos) {
      function = line.substr(name + 2, line.rfind(">:") - name - 2);
      return;
    }
    const auto tab = line.find('\t');
    if (tab == std::string::npos) return;
    const std::string instruction = line.substr(tab + 1);
    if (instruction[0] == 'v' || instruction.find("%ymm") != std::string::npos ||
        instruction.find("%zmm") != std::string::npos ||
        instruction.find("%k") != std::string::npos) {
      found.insert(function);
    }
  });
  return found;
}

// Functions of another instruction set have it in their names; their callers check first.
TEST_F(SimdSymbols, OtherObjectsHoldNoWideInstruction) {
  const auto files = archives(false);
  EXPECT_GE(files.size(), 10u);
  int named = 0;
  for (const std::string& file : files) {
    for (const std::string& function : wide_functions(file)) {
      const bool is_named =
          function.find("_avx2") != std::string::npos || function.find("_fma") != std::string::npos;
      EXPECT_TRUE(is_named) << function << " in " << file;
      named += is_named;
    }
  }
  EXPECT_GT(named, 0) << "the search for instructions finds none";
  for (const std::string& file : archives(true)) EXPECT_FALSE(wide_functions(file).empty()) << file;
}

}  // namespace
