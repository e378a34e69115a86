// The pack of `./weft gpu-pack` from end to end: .gpu/run on emulated GPUs, and on machines where
// something is missing.
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "weft/tests/io/files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class Rehearsal : public ::testing::Test {
 protected:
  Rehearsal() {
    fs::create_directories(folder.path("pack/benchmarks"));
    fs::create_directories(folder.path("bin"));
    copy("tools/gpu/run", "run");
    testing::write_file(folder.path("pack/commit"), "abc\n");
    testing::write_file(folder.path("pack/archs"), "none\n");
  }

  void copy(const std::string& from, const std::string& to) const {
    fs::copy_file(from, folder.path("pack/" + to));
  }
  /// Makes the archive of a build from these files of the folder.
  void archive(const std::string& version, const std::string& files) const {
    const std::string command = "tar -C " + folder.path("") + " -I 'gzip -1' -cf " +
                                folder.path("pack/cuda-" + version + ".tar.gz") + " " + files;
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  void write_program(const std::string& path, const std::string& text) const {
    testing::write_file(folder.path(path), "#!/bin/sh\n" + text);
    fs::permissions(folder.path(path), fs::perms::owner_all);
  }

  /// Returns its status; log() is what it prints.
  int run(const std::string& environment, const std::string& arguments) const {
    const std::string command = environment + " OUT=" + folder.path("out") + " " +
                                folder.path("pack/run") + " " + arguments + " >" +
                                folder.path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status)) << command;
    return WEXITSTATUS(status);
  }
  std::string log() const { return testing::read_file(folder.path("log")); }
  std::string out(const std::string& file) const {
    return testing::read_file(folder.path("out/" + file));
  }

  testing::TempFolder folder;
};

// The programs are those of the older of two builds, and the driver is too old for the newer one.
TEST_F(Rehearsal, OnEmulatedGpus) {
  for (const char* program :
       {"tests/gpu/conformance", "benchmarks/bench", "examples/autoencoder", "examples/mlp"})
    fs::copy_file(program, folder.path(fs::path(program).filename()));
  archive("12", "conformance bench autoencoder mlp");
  testing::write_file(folder.path("pack/builds"), "13 13000\n12 12040\n");
  fs::copy_file("tests/gpu/libcuda.so.1", folder.path("bin/libcuda.so.1"));
  for (const auto& entry : fs::recursive_directory_iterator("tests")) {
    if (entry.path().extension() != ".safetensors") continue;
    fs::create_directories(folder.path("pack" / entry.path().parent_path()));
    copy(entry.path(), entry.path());
  }
  testing::write_mnist(folder.path("pack/data"), 8, 2);
  ASSERT_EQ(run("WEFT_EMULATED_RACES=0 DRIVER_CUDA=12080 LD_LIBRARY_PATH=" + folder.path("bin"),
                "--emulated --seconds 1500 --filter "
                "'*Reduce.Dense/*:*Loss.*/cuda:*Optimizers.FollowsPyTorch/cuda'"),
            0)
      << log() << out("bench.log") << out("examples.log") << out("conformance.log");

  std::set<std::pair<std::string, std::string>> rows;
  for (const std::string precision : {"bf16", "tf32", "f32"}) {
    const auto result = nlohmann::json::parse(out("bench_" + precision + ".json"));
    EXPECT_TRUE(result["tiny"]);
    for (const auto& row : result["rows"]) {
      rows.emplace(row["work"], row["precision"]);
      for (const char* side : {"weft_ms", "captured_ms"})
        EXPECT_GT(row[side]["median"].get<double>(), 0) << row;
    }
  }
  EXPECT_EQ(rows.size(), 12U);
  EXPECT_TRUE(rows.contains({"resnet50-b256", "bf16"}));

  const std::string summary = out("summary.md");
  for (const char* line :
       {"by CUDA 12 \\|", "conformance, [1-9][0-9]* on CUDA \\| passed",
        "mlp: the same losses, cuda and captured \\| passed",
        "autoencoder: the same losses, cpu and cuda \\| passed", "bench in bf16 \\| passed",
        "- [1-9][0-9]* times cuDNN's kernel sm90_[a-z_]*\n", "THE BENCHMARKS RAN WITHOUT A PEER"})
    EXPECT_TRUE(std::regex_search(summary, std::regex(line))) << line << "\n" << summary;
  EXPECT_NE(out("conformance.xml").find("</testsuites>"), std::string::npos);
}

// Two suites; in the larger one a test ends the process, so the test after it does not run.
TEST_F(Rehearsal, FailuresAreListedAndRunAgainAtTheEnd) {
  write_program("pack/conformance", R"(case "$*" in
  *list_tests*) printf 'Small.\n  A/cuda\nLarge.\n  A/cuda\n  B/cuda\n  C/cuda\n' ;;
  *filter=Small.A/cuda) echo '[       OK ] Small.A/cuda (0 ms)' ;;
  *filter=Large.A/cuda:*) echo '[       OK ] Large.A/cuda (0 ms)'; exit 3 ;;
  *filter=Large.B/cuda) exit 3 ;;
  *filter=Large.C/cuda) echo '[       OK ] Large.C/cuda (0 ms)' ;;
esac
)");
  EXPECT_EQ(run("", "--emulated conformance"), 1);
  EXPECT_TRUE(std::regex_search(log(), std::regex("FAILED +2 passed +2 failed +0 skipped")))
      << log();
  EXPECT_NE(
      log().find("- `Large.B/cuda` failed, alone too\n- `Large.C/cuda` failed, but not alone"),
      std::string::npos)
      << log();
  const std::string ran = out("conformance.log");
  EXPECT_LT(ran.find("Large.A/cuda"), ran.find("Small.A/cuda")) << ran;
  EXPECT_EQ(run("", "--emulated --seconds 0 conformance"), 1);
  EXPECT_NE(log().find("- `Small.A/cuda` failed\n"), std::string::npos) << log();
}

TEST_F(Rehearsal, APlanThatCudnnRefusesToRunIsAFailure) {
  write_program("pack/conformance", R"(case "$*" in
  *list_tests*) printf 'Small.\n  A/cuda\n' ;;
  *) for i in 1 2; do echo 'weft: warning: conv2d 3x3: cuDNN refuses to run its own plan eng1' >&2; done
     echo '[       OK ] Small.A/cuda (0 ms)' ;;
esac
)");
  EXPECT_EQ(run("", "--emulated conformance"), 1);
  EXPECT_TRUE(std::regex_search(log(), std::regex("refused at run time +0 passed +1 failed")))
      << log();
  EXPECT_NE(log().find("- conv2d 3x3: cuDNN refuses to run its own plan eng1\n"), std::string::npos)
      << log();
}

// Each precision has a process of its own. A fallback engine of cuDNN may be the fastest, but must
// not be the only one.
TEST_F(Rehearsal, AnEngineThatCudnnFallsBackToIsAFailureWhereNoOtherRan) {
  const auto write_bench = [&](const std::string& why) {
    write_program("pack/bench", "echo \"args: $*\"\nprintf '%s\\n' '" + why + "' >&2\n");
  };
  const std::string text = "weft: perf: conv2d forward: big [2,3,4,5], f32 nhwc on cuda:0: ";
  write_bench(text + "nhwc.e62.2=1 0.02 ms, nhwc.e1.fallback 0.01 ms -> nhwc.e1.fallback (timed)");
  EXPECT_EQ(run("", "--emulated bench"), 0) << log();
  const std::string ran = out("bench.log");
  EXPECT_LT(ran.find("args: --precision bf16 "), ran.find("args: --precision tf32 ")) << ran;
  EXPECT_LT(ran.find("args: --precision tf32 "), ran.find("args: --precision f32 ")) << ran;
  EXPECT_NE(ran.find("--work resnet50-b256 cnn-full "), std::string::npos) << ran;
  EXPECT_NE(log().find("- 3 convolutions by cuDNN's nhwc.e1\n"), std::string::npos) << log();
  EXPECT_NE(log().find("- the driver gave no names of cuDNN's kernels\n"), std::string::npos);
  for (const char* const of_logs : {"perf: ", "=== "}) {
    EXPECT_EQ(out("summary.md").find(of_logs), std::string::npos) << out("summary.md");
  }

  for (const char* refused :
       {"nhwc.e62.2=1 fails, nhwc.e1.fallback 0.1 ms -> nhwc.e1.fallback (timed)",
        "nhwc.e1.fallback -> nhwc.e1.fallback (only candidate) in layer1.0"}) {
    write_bench(text + refused);
    EXPECT_EQ(run("", "--emulated bench"), 1) << log();
    EXPECT_NE(log().find(std::string("f32 nhwc on cuda:0: ") + refused), std::string::npos)
        << log();
  }
}

// Each of three processes says so.
TEST_F(Rehearsal, TheKernelsOfCudnnAreNamed) {
  write_program("pack/bench",
                "echo 'weft: perf: conv2d forward: big [2,3,4,5], f32 nhwc on cuda:0: "
                "nhwc.e62.2=1.relu runs sm90_xmma_fprop, sm90_reduce' >&2\n"
                "echo 'weft: perf: conv2d forward: big [2,3,4,6], f32 nhwc on cuda:0: "
                "nchw.e1.fallback runs sm90_xmma_fprop' >&2\n");
  EXPECT_EQ(run("", "--emulated bench"), 0) << log();
  for (const std::string& text : {log(), out("summary.md")}) {
    EXPECT_NE(text.find("- 6 times cuDNN's kernel sm90_xmma_fprop\n"
                        "- 3 times cuDNN's kernel sm90_reduce\n"),
              std::string::npos)
        << text;
  }
}

TEST_F(Rehearsal, WhatOnlyAGpuCanShowIsTickedOff) {
  write_program("pack/conformance", R"(case "$*" in
  *list_tests*) printf 'First.\n  A/cuda\n  B/cuda\nSecond.\n  A/cuda\n  B/cuda\n' ;;
  *filter=First*) printf '[       OK ] First.%s/cuda (0 ms)\n' A B ;;
  *) echo '[       OK ] Second.A/cuda (0 ms)'; exit 1 ;;
esac
)");
  testing::write_file(folder.path("pack/unproven"),
                      "one|First.A/cuda:*.None\ntwo|Second.*\nthree|Third.*:Fourth.*\n");
  EXPECT_EQ(run("", "--emulated conformance"), 1);
  for (const char* line :
       {"- [x] one: 1 tests passed\n", "- [ ] two: 1 tests FAILED, 1 passed\n",
        "- [ ] three: not run; .gpu/run --filter 'Third.*:Fourth.*' conformance\n"}) {
    EXPECT_NE(log().find(line), std::string::npos) << line << log();
  }
}

// Builds for CUDA 99 and 98 and a machine that has what the test says, and nothing of another CUDA.
class ChoiceOfABuild : public Rehearsal {
 protected:
  ChoiceOfABuild() {
    fs::create_directories(folder.path("pack/tests"));
    add_build("99", "99000");
    add_build("98", "98040");
    fs::copy_file("tests/gpu/libcuda.so.1", folder.path("bin/libcuda.so.1"));
  }

  /// Programs that say of which build they are, and where the goldens are.
  void add_build(const std::string& version, const std::string& oldest_driver) {
    write_program("conformance",
                  "case \"$*\" in\n"
                  "  *list_tests*) printf 'Small.\\n  A/cuda\\n' ;;\n"
                  "  *) echo 'build " +
                      version +
                      "'\n"
                      "     [ -d \"$(dirname \"$0\")/tests\" ] && "
                      "echo '[       OK ] Small.A/cuda (0 ms)' ;;\n"
                      "esac\n");
    archive(version, "conformance");
    builds_ += version + " " + oldest_driver + " libcublasLt.so." + version + " libcudnn.so.90\n";
    testing::write_file(folder.path("pack/builds"), builds_);
  }
  /// FOLDER/LIBRARY, where FOLDER is toolkit/lib64, python/nvidia/NAME/lib, or the system's bin.
  std::string add_library(const std::string& path) const {
    fs::create_directories(fs::path(folder.path(path)).parent_path());
    testing::write_file(folder.path(path), "");
    return folder.path(path);
  }
  int run_with_driver(const std::string& version, const std::string& options = "") const {
    return run("DRIVER_CUDA=" + version + " CUDA_HOME=" + folder.path("toolkit") + " PYTHONPATH=" +
                   folder.path("python") + " LD_LIBRARY_PATH=" + folder.path("bin"),
               options + " conformance");
  }
  void expect_build(const std::string& version) const {
    EXPECT_NE(out("conformance.log").find("build " + version + "\n"), std::string::npos) << log();
    EXPECT_NE(out("summary.md").find(", by CUDA " + version + " |"), std::string::npos) << log();
  }
  void expect_said(const std::string& text) const {
    EXPECT_NE(log().find(text), std::string::npos) << text << "\n" << log();
  }

 private:
  std::string builds_;
};

TEST_F(ChoiceOfABuild, IsThatOfTheDriver) {
  for (const char* library : {"libcublasLt.so.99", "libcublasLt.so.98", "libcudnn.so.90"}) {
    add_library(std::string("bin/") + library);
  }
  EXPECT_EQ(run_with_driver("98080"), 0) << log();
  expect_build("98");
  EXPECT_EQ(run_with_driver("99000"), 0) << log();
  expect_build("99");
  EXPECT_EQ(run_with_driver("98030"), 1);
  expect_said("the driver is too old: it runs CUDA 98.3, these programs need CUDA 99 or 98.4");
  // A rehearsal needs no driver.
  run_with_driver("98030", "--dry");
  expect_build("99");
}

TEST_F(ChoiceOfABuild, IsThatOfTheLibraries) {
  add_library("python/nvidia/cudnn/lib/libcudnn.so.90");
  add_library("python/nvidia/cublas/lib/libcublasLt.so.98");
  EXPECT_EQ(run_with_driver("99000"), 0) << log();
  expect_build("98");
  // The toolkit has no cuDNN, and Python's is for its own CUDA.
  add_library("toolkit/lib64/libcublasLt.so.99");
  EXPECT_EQ(run_with_driver("99000"), 0) << log();
  expect_build("98");
  add_library("toolkit/lib64/libcudnn.so.90");
  EXPECT_EQ(run_with_driver("99000"), 0) << log();
  expect_build("99");
}

TEST_F(ChoiceOfABuild, ACudnnOfAnotherPlaceIsBetterThanNone) {
  add_library("toolkit/lib64/libcublasLt.so.99");
  add_library("python/nvidia/cudnn/lib/libcudnn.so.90");
  EXPECT_EQ(run_with_driver("99000"), 0) << log();
  expect_build("99");
}

TEST_F(ChoiceOfABuild, LibrariesOfAnotherCudaAreNamed) {
  const std::string there = add_library("python/nvidia/cublas/lib/libcublasLt.so.12");
  const std::string cudnn = add_library("python/nvidia/cudnn/lib/libcudnn.so.89");
  EXPECT_EQ(run_with_driver("99000"), 1);
  expect_said("of CUDA 99 need: libcublasLt.so.99 libcudnn.so.90\n");
  expect_said("of CUDA 98 need: libcublasLt.so.98 libcudnn.so.90\n");
  expect_said(there + " is of CUDA 12, these programs need CUDA 99 or 98\n");
  expect_said(cudnn + " is of libcudnn 89, these programs need libcudnn 90\n");

  const std::string newer = add_library("bin/libcublasLt.so.99");
  add_library("bin/libcudnn.so.90");
  EXPECT_EQ(run_with_driver("98080"), 1);
  expect_said("of CUDA 98 need: libcublasLt.so.98\n");
  expect_said(newer + " is of CUDA 99, these programs need CUDA 98\n");
  expect_said("the driver runs CUDA 98.8: the other programs need a newer one\n");
}

TEST_F(ChoiceOfABuild, AnOldDriverIsNamed) {
  EXPECT_EQ(run_with_driver("12080"), 1);
  expect_said("the driver is too old: it runs CUDA 12.8, these programs need CUDA 99 or 98.4\n");
}

// `./weft gpu-pack` asks the packed programs the same; the emulated ones lack cuDNN's attention.
TEST(Unproven, EachLineNamesTests) {
  const testing::TempFolder folder;
  std::istringstream lines(testing::read_file("tools/gpu/unproven"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    std::istringstream patterns(line.substr(line.find('|') + 1));
    for (std::string pattern; std::getline(patterns, pattern, ':');) {
      if (pattern == "*CudnnAttention.*/cuda") continue;
      const std::string command = "tests/gpu/conformance --gtest_list_tests --gtest_filter='" +
                                  pattern + "' >" + folder.path("list");
      ASSERT_EQ(std::system(command.c_str()), 0) << command;
      EXPECT_NE(testing::read_file(folder.path("list")), "") << pattern << ": " << line;
    }
  }
  EXPECT_GT(count, 10);
}

}  // namespace
}  // namespace weft
