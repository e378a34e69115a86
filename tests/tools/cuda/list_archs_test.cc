// tools/cuda/list_archs, with the test's own nvcc and nvidia-smi.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "weft/core/base/error.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft {
namespace {

class ListArchs : public ::testing::Test {
 protected:
  ListArchs() {
    std::filesystem::create_directories(folder_.path("toolkit/bin"));
    std::filesystem::create_directories(folder_.path("path"));
    nvcc("75 80 86 87 89 90 100 103 120");
    nvidia_smi("exit 9");  // replaces the machine's own
  }

  void nvcc(const std::string& has) {
    program("toolkit/bin/nvcc", "[ \"$*\" = --list-gpu-arch ] && printf 'compute_%s\\n' " + has);
  }
  void nvidia_smi(const std::string& body) { program("path/nvidia-smi", body); }
  /// In nvidia-smi's form.
  void gpus(const std::string& capabilities) {
    nvidia_smi("[ \"$*\" = '--query-gpu=compute_cap --format=csv,noheader' ] && printf '%s\\n' " +
               capabilities);
  }

  /// Its output or, if it refuses, "refused: " and its sentence.
  std::string list(const std::string& what) {
    const std::string command = detail::concat(
        "CUDA_HOME=", folder_.path("toolkit"), " PATH=", folder_.path("path"),
        ":/usr/bin:/bin tools/cuda/list_archs ", what, " >", folder_.path("log"), " 2>&1");
    const int status = std::system(command.c_str());
    std::string text = testing::read_file(folder_.path("log"));
    EXPECT_TRUE(text.ends_with('\n')) << text;
    text.pop_back();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) return "refused: " + text;
    EXPECT_EQ(status, 0) << text;
    return text;
  }

 private:
  void program(const std::string& file, const std::string& body) {
    const std::filesystem::path path = folder_.path(file);
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  testing::TempFolder folder_;
};

TEST_F(ListArchs, TheGpusFoundDecide) {
  gpus("9.0");
  EXPECT_EQ(list("default"), "90+ptx");
  EXPECT_EQ(list("native"), "90+ptx");
  EXPECT_EQ(list("install"), "90+ptx");
  gpus("8.6 7.5 8.6 10.0");
  EXPECT_EQ(list("default"), "75,86,100+ptx");
}

TEST_F(ListArchs, GpusThatTheCompilerDoesNotKnowGetTheNearestBeforeThem) {
  gpus("8.8");  // it can run machine code for 8.7
  EXPECT_EQ(list("default"), "87+ptx");
  gpus("12.1");
  nvcc("75 80 90");
  EXPECT_EQ(list("default"), "90+ptx");
  // A GPU that is too old for the compiler does not count.
  gpus("6.1 8.0");
  EXPECT_EQ(list("default"), "80+ptx");
}

TEST_F(ListArchs, WithoutAGpuABuildRunsOnAll) {
  EXPECT_EQ(list("default"), "75+ptx");
  EXPECT_EQ(list("install"), "75,80,86,89,90,100+ptx");
  EXPECT_EQ(list("native"),
            "refused: nvidia-smi names no GPU here that this toolkit's nvcc compiles for; it has "
            "75,80,86,87,89,90,100,103,120");
  for (const char* broken :
       {"echo 'NVIDIA-SMI has failed'; exit 9", "exec /nowhere", "echo '[N/A]'", "exit 0"}) {
    nvidia_smi(broken);
    EXPECT_EQ(list("default"), "75+ptx") << broken;
  }
  gpus("6.1");
  EXPECT_EQ(list("default"), "75+ptx");
}

TEST_F(ListArchs, TheCommonOnesAreThoseThatTheCompilerHas) {
  EXPECT_EQ(list("common"), "75,80,86,89,90,100+ptx");
  EXPECT_EQ(list("all"), "75,80,86,87,89,90,100,103,120+ptx");
  nvcc("50 60 70 75 80 86 87 89 90");
  EXPECT_EQ(list("common"), "75,80,86,89,90+ptx");
  nvcc("110 120");
  EXPECT_EQ(list("common"), "120+ptx");
  EXPECT_EQ(list("default"), "120+ptx");
}

TEST_F(ListArchs, NumbersMustBeTheCompilers) {
  EXPECT_EQ(list("80,90+ptx"), "80,90+ptx");
  EXPECT_EQ(list("8.0,10.0+ptx"), "80,100+ptx");
  EXPECT_EQ(list("80,70,90"),
            "refused: this toolkit's nvcc has no architecture 70; it has "
            "75,80,86,87,89,90,100,103,120");
  for (const char* text : {"sm_80", "80,", "80+ptx+ptx", "90a", "-1", "'80 86'", "''"}) {
    EXPECT_HAS(list(text),
               "is no list of architectures such as 80,86 or 90+ptx, nor native, "
               "common or all; this toolkit's nvcc has 75,80,")
        << text;
  }
}

}  // namespace
}  // namespace weft
