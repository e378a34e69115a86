// The programs' steps on emulated GPUs, held against the same steps on the CPU.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "weft/tests/io/files.h"

namespace weft {
namespace {

struct Numbers {
  const char* options;
  double tolerance;  // relative, of the loss after two steps
  friend std::ostream& operator<<(std::ostream& out, const Numbers& n) { return out << n.options; }
};
// The devices sum up in other orders, and Adam's first steps are as long for small gradients, whose
// signs rounding may turn, as for large ones.
constexpr Numbers kNumbers[] = {
    {"--dtype f64", 1e-9},
    {"--conv-fp32-precision ieee", 1e-4},
    {"--amp bf16", 0.05},
};
constexpr const char* kPrograms[] = {
    "autoencoder",
    "mlp",
    "cnn --width-scale 1/64",
};
constexpr const char* kConditions[] = {
    "WEFT_EMULATED_ORDER=lazy",
    "WEFT_EMULATED_ORDER=random WEFT_EMULATED_PEERS=0",
    "WEFT_EMULATED_HMM=1",
};

class EmulatedPrograms
    : public ::testing::TestWithParam<std::tuple<const char*, Numbers, const char*>> {
 protected:
  std::vector<double> losses(const std::string& environment, const std::string& program,
                             const std::string& options) const {
    const std::string command = environment + " WEFT_CACHE=off timeout 300 examples/" + program +
                                " --data " + folder.path("data") + " --out " + folder.path("out") +
                                " --epochs 1 --limit-steps 2 --batch-size 2 --deterministic " +
                                options + " >" + folder.path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << command << "\n"
        << testing::read_file(folder.path("log"));
    const auto metrics = nlohmann::json::parse(testing::read_file(folder.path("out/metrics.json")));
    return metrics["losses"];
  }

  testing::TempFolder folder;
};

TEST_P(EmulatedPrograms, TrainAsOnTheCpu) {
  const auto& [program, numbers, environment] = GetParam();
  if (std::string(program).starts_with("cnn")) {
    testing::write_cifar10(folder.path("data"), 1, 2);
  } else {
    testing::write_mnist(folder.path("data"), 4, 2);
  }
  const std::string options = numbers.options;
  const std::vector<double> cpu = losses(environment, program, "--device cpu " + options);
  const std::vector<double> cuda = losses(environment, program, "--device cuda " + options);
  ASSERT_EQ(cpu.size(), 2U);
  ASSERT_EQ(cuda.size(), 2U);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(cuda[i], cpu[i], numbers.tolerance * std::abs(cpu[i])) << "step " << i;
  }
}

TEST(OldDriver, IsNamed) {
  testing::TempFolder folder;
  const std::string log = folder.path("log");
  const std::string command = "WEFT_EMULATED_DRIVER=11040 examples/mlp --device cuda --data " +
                              folder.path("data") + " --out " + folder.path("out") + " >" + log +
                              " 2>&1";
  testing::write_mnist(folder.path("data"), 4, 2);
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_NE(testing::read_file(log).find(
                "no GPU is used: the driver is made for CUDA up to 11.4, this weft for "),
            std::string::npos)
      << testing::read_file(log);
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedPrograms,
                         ::testing::Combine(::testing::ValuesIn(kPrograms),
                                            ::testing::ValuesIn(kNumbers),
                                            ::testing::ValuesIn(kConditions)));

}  // namespace
}  // namespace weft
