// Programs and kernels' tests on other processors than this machine's, emulated by qemu: no
// instruction may run that the processor lacks.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "weft/tests/io/files.h"

namespace weft {
namespace {

struct Processor {
  const char* model;  // qemu's name of the processor
  std::string level;  // the widest level that it offers, see core/base/simd_level.h
  friend std::ostream& operator<<(std::ostream& out, const Processor& p) {
    return out << p.model << ", level " << p.level;
  }
};
const Processor kBaseline = {"qemu64", "baseline"};
// Everything that qemu 7.2 supports, which does not include AVX-512.
const Processor kAvx2 = {"max", "avx2"};
// AVX without AVX2 and FMA: weft uses its baseline loops, but oneDNN does not.
const Processor kAvx = {"SandyBridge", "baseline"};

struct Program {
  const char* name;
  const char* command;
  bool each_level = false;    // its cases have the names of the levels, see tests/kernels/targets.h
  const char* left_out = "";  // cases that take qemu too long, as a part of a filter
  friend std::ostream& operator<<(std::ostream& out, const Program& p) { return out << p.name; }
};
constexpr Program kExamples[] = {
    {"autoencoder", "examples/autoencoder"},
    {"mlp", "examples/mlp"},
};
// Only parts of the larger programs: qemu does about 150 million multiplications a second.
constexpr Program kTests[] = {
    {"rng", "tests/core/rng_test"},
    {"pixels", "tests/data/simd_level_test"},
    {"copy", "tests/kernels/copy_test", true},
    {"elementwise", "tests/kernels/elementwise_test", true},
    {"loss", "tests/kernels/loss_test", true, ":*OfAMillionValues*"},
    {"norm", "tests/kernels/norm_test", true},
    {"optim", "tests/kernels/optim_test", true},
    {"pooling", "tests/kernels/pooling_test", true},
    {"random", "tests/kernels/random_test", true},
    {"reduce", "tests/kernels/reduce_test", true},
    {"softmax", "tests/kernels/softmax_test", true},
    {"matmul", "tests/kernels/matmul_test --gtest_filter=*ViewsMayBegin*:*DeterministicRuns*"},
    {"conv", "tests/kernels/conv_test --gtest_filter=*DeterministicRuns*:Winograd.RoundsAFew*"},
};

/// The levels of the cases .../cpu_LEVEL that passed.
std::set<std::string> passed_levels(const std::string& log) {
  static const std::string kMark = "/cpu_";
  std::set<std::string> levels;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const auto at = line.find(kMark);
    if (!line.starts_with("[       OK ]") || at == std::string::npos) continue;
    const auto level = at + kMark.size();
    levels.insert(line.substr(level, line.find(' ', level) - level));
  }
  return levels;
}

class Emulated : public ::testing::TestWithParam<std::tuple<Processor, Program>> {
 protected:
  testing::TempFolder folder;
};

TEST_P(Emulated, Runs) {
  const auto& [processor, program] = GetParam();
  std::string command = program.command;
  if (command.starts_with("examples/")) {
    // Two steps of two images, and a test pass over two.
    testing::write_mnist(folder.path("data"), 4, 2);
    command += " --data " + folder.path("data") + " --out " + folder.path("out") +
               " --epochs 1 --limit-steps 2 --batch-size 2 --deterministic --threads 1";
  }
  // The cases of the baseline ran on the baseline, and the reference is compiled for it alone.
  if (program.each_level) {
    const char* passed_already = processor.level == "baseline" ? "" : "*/cpu_baseline:*/reference";
    command += std::string(" --gtest_filter=-") + passed_already + program.left_out;
  }
  // A clean environment: Bazel's settings for this test's shards and report must not reach the
  // others.
  const std::string in_all =
      "env -i PATH=\"$PATH\" TEST_TMPDIR=" + folder.root() +
      " OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive WEFT_CACHE=off" +
      // glibc's exp and log choose fused multiply-adds where the processor has them, which qemu
      // computes in software; weft's own kernels keep theirs.
      " GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-AVX2" + " timeout 400 qemu-x86_64 -cpu " +
      processor.model + " " + command + " >" + folder.path("log") + " 2>&1";
  const int status = std::system(in_all.c_str());
  const std::string log = testing::read_file(folder.path("log"));
  const std::string end = log.substr(log.size() - std::min<std::size_t>(log.size(), 4000));
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), 0)
      << command << " on " << processor
      << " (132: an instruction that it lacks, 124: out of time)\n"
      << end;
  if (program.each_level) {
    EXPECT_EQ(passed_levels(log), std::set{processor.level}) << end;
  }
}

std::string name_of(const ::testing::TestParamInfo<Emulated::ParamType>& info) {
  const auto& [processor, program] = info.param;
  return std::string(program.name) + "_on_" + processor.model + "_" + processor.level;
}

INSTANTIATE_TEST_SUITE_P(Examples, Emulated,
                         ::testing::Combine(::testing::Values(kBaseline, kAvx, kAvx2),
                                            ::testing::ValuesIn(kExamples)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Tests, Emulated,
                         ::testing::Combine(::testing::Values(kBaseline, kAvx2),
                                            ::testing::ValuesIn(kTests)),
                         name_of);

}  // namespace
}  // namespace weft
