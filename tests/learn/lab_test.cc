// Runs all candidates of the exercises whose programs are the arguments: what is right passes, each
// wrong one is caught with its sentence, and a skeleton is judged "not yet".
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

namespace weft {
namespace {

// What a command prints, and its exit status.
std::pair<std::string, int> run(const std::string& command) {
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return {"cannot run " + command, -1};
  std::string text;
  std::array<char, 4096> bytes{};
  while (const std::size_t n = std::fread(bytes.data(), 1, bytes.size(), pipe)) {
    text.append(bytes.data(), n);
  }
  const int status = ::pclose(pipe);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

class Candidate : public ::testing::Test {
 public:
  Candidate(std::string lab, std::string name, std::string sentence)
      : lab_(std::move(lab)), name_(std::move(name)), sentence_(std::move(sentence)) {}

  void TestBody() override {
    const auto [text, status] = run(lab_ + " --judge " + name_);
    if (name_ == "yours") {
      // git has the skeleton.
      if (status == 0) GTEST_SKIP() << "solution.cc is solved here";
      EXPECT_EQ(text.rfind("not yet: ", 0), 0) << text;
      EXPECT_EQ(status, 1);
    } else if (name_ == "right") {
      EXPECT_EQ(text.rfind("solved: ", 0), 0) << text;
      EXPECT_EQ(status, 0);
    } else {
      EXPECT_EQ(text.find("solved"), text.npos) << text;
      EXPECT_NE(sentence_, "");
      EXPECT_NE(text.find(sentence_), text.npos) << text << "should have: " << sentence_;
      EXPECT_EQ(status, 1);
    }
  }

 private:
  const std::string lab_, name_, sentence_;
};

// Registers the tests of the program `lab`, which is learn/NN_name/lab.
void register_lab(const std::string& lab) {
  const std::string folder = lab.substr(0, lab.rfind('/'));
  const std::string suite = folder.substr(folder.rfind('/') + 1);
  std::istringstream lines(run(lab + " --list").first);
  int wrong = -2;
  for (std::string line; std::getline(lines, line); ++wrong) {
    const std::string name = line.substr(0, line.find('\t'));
    const std::string sentence = line.substr(std::min(name.size() + 1, line.size()));
    ::testing::RegisterTest(suite.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [=] { return new Candidate(lab, name, sentence); });
  }
  ::testing::RegisterTest(suite.c_str(), "HasFourWrongOnes", nullptr, nullptr, __FILE__, __LINE__,
                          [=] { return new Candidate(lab, wrong >= 4 ? "right" : "too few", ""); });
}

TEST(Break, SaysWhatTheMistakesAre) {
  const std::string text = run("learn/01_allreduce/lab --break").first;
  EXPECT_NE(text.find("\nown_first (each rank begins with its own numbers): wrong, with "),
            text.npos)
      << text;
  EXPECT_EQ(text.find("NOT CAUGHT"), text.npos) << text;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) weft::register_lab(argv[i]);
  return RUN_ALL_TESTS();
}
