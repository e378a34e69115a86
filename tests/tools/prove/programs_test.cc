// Every program of examples/ that takes ranks or devices, as ./weft prove judges it: the right ones
// are never accused. A new program needs a row here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "weft/tests/io/files.h"
#include "weft/tests/tools/command.h"

namespace weft {
namespace {

struct Row {
  std::string options, verdict;
  std::string note = {};   ///< the only one
  std::string cause = {};  ///< likewise
  int ranks = 2;
};

const std::string kBits = "equal to the bit", kRounding = "equal to rounding",
                  kNone = "not comparable";
const std::string kMnist = "--batch-size 4 --limit-steps 2",
                  kNet = "--width-scale 1/64 --data fake ",
                  kText =
                      "--context 8 --width 8 --heads 2 --layers 2 --batch-size 4 --limit-steps 2",
                  kPictures = "--data fake --image-size 8 --batch-size 4 --limit-steps 2";

// By the program, with the options that tell its rows apart.
const std::map<std::string, Row>& rows() {
  static const std::map<std::string, Row> all = {
      {"autoencoder_ddp", {kMnist, kBits}},
      {"autoencoder_pipe", {kMnist, kBits}},
      {"autoencoder_pipe_ddp", {kMnist, kBits}},
      {"char_transformer_3d", {kText, kRounding, "reduction_order", "", 4}},
      {"char_transformer_3d --fsdp", {kText, kRounding, "reduction_order", "", 8}},
      {"char_transformer_dp", {kText, kRounding, "reduction_order"}},
      {"char_transformer_fsdp", {kText, kBits}},
      {"char_transformer_fsdp --replicas 2", {kText, kRounding, "reduction_order", "", 4}},
      {"char_transformer_fsdp --strategy ddp", {kText, kBits}},
      {"char_transformer_fsdp --strategy zero1", {kText, kBits}},
      {"char_transformer_fsdp --strategy zero2", {kText, kBits}},
      {"char_transformer_tp", {kText, kRounding, "reduction_order"}},
      {"cnn_ddp", {kNet + kMnist, kBits}},
      {"cnn_dp", {kNet + kMnist, kRounding, "reduction_order"}},
      {"dcgan_horovod", {kMnist + " --width 4 --latent 8", kBits, "local_batch_norm"}},
      {"gan_style_ddp", {kMnist + " --width 2 --vgg-width 2", kBits}},
      {"mlp_ddp", {kMnist, kBits}},
      {"mlp_dp", {kMnist, kRounding, "reduction_order"}},
      {"mlp_horovod", {kMnist, kBits}},
      {"mlp_zero", {kMnist, kBits}},
      {"resnet_ddp", {kPictures, kBits, "local_batch_norm"}},
      {"resnet_dp", {kPictures, kNone, "", "local_batch_norm"}},
      {"resnet_fsdp", {kPictures, kBits, "local_batch_norm"}},
      {"resnet_pipe", {kPictures + " --batch-size 16", kBits}},
  };
  return all;
}
/// p4_table starts other programs. mlp_elastic has a loop of its own, with ranks that come and go.
/// The others need two devices for their parts, so there is no run on one.
const std::set<std::string> kRefused = {"p4_table", "mlp_elastic", "autoencoder_mp", "resnet_mp"};

class ProvePrograms : public testing::CommandTest {
 protected:
  ProvePrograms() : CommandTest("prove") { setenv("TMPDIR", folder.root().c_str(), 1); }
  ~ProvePrograms() override { unsetenv("TMPDIR"); }

  /// Whether a line of its help begins with one of the options by which prove sets the number of
  /// ranks.
  bool takes_ranks(const std::string& program) const {
    const std::string help = folder.path("help");
    static_cast<void>(std::system((program + " --help >" + help + " 2>&1").c_str()));
    std::ifstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      const std::string word = line.substr(std::min(line.find_first_not_of(' '), line.size()));
      for (const char* option : {"--local-rank", "--devices", "--nprocs"}) {
        if (word.starts_with(option)) return true;
      }
    }
    return false;
  }
};

TEST_F(ProvePrograms, EachOneThatTakesRanksIsInTheTable) {
  std::set<std::string> found, known = kRefused;
  for (const auto& [command, row] : rows()) known.insert(command.substr(0, command.find(' ')));
  for (const auto& entry : std::filesystem::directory_iterator("examples")) {
    if (takes_ranks(entry.path())) found.insert(entry.path().filename());
  }
  EXPECT_EQ(found, known);
}

class EachProgram : public ProvePrograms, public ::testing::WithParamInterface<std::string> {};

TEST_P(EachProgram, IsJudgedRight) {
  const Row& row = rows().at(GetParam());
  testing::write_mnist(folder.path("data"), 40, 12);
  testing::write_file(folder.path("data/text.txt"), std::string(300, 'a') + std::string(300, 'b'));
  std::string options = row.options;
  if (options.find("--data ") == std::string::npos) options += " --data " + folder.path("data");
  const int status =
      run("--json " + folder.path("json") + " --launcher launch/weftrun --ranks " +
          std::to_string(row.ranks) + " examples/" + GetParam() + " --threads 1 " + options);
  ASSERT_EQ(status, row.verdict == kNone ? 2 : 0) << log();
  ASSERT_TRUE(std::filesystem::exists(folder.path("json"))) << log();
  const auto verdict = nlohmann::json::parse(testing::read_file(folder.path("json")));
  EXPECT_EQ(verdict["verdict"], row.verdict) << log();
  const auto names = [&](const char* list) {
    std::string text;
    for (const auto& one : verdict[list]) text += one["name"].get<std::string>();
    return text;
  };
  EXPECT_EQ(names("notes"), row.note) << log();
  EXPECT_EQ(names("causes"), row.cause) << log();
}

std::vector<std::string> commands() {
  std::vector<std::string> commands;
  for (const auto& [command, row] : rows()) commands.push_back(command);
  return commands;
}
INSTANTIATE_TEST_SUITE_P(Of, EachProgram, ::testing::ValuesIn(commands()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace_if(name, [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

TEST_F(ProvePrograms, OthersAreRefused) {
  testing::write_mnist(folder.path("data"), 40, 12);
  const std::string program = "--launcher launch/weftrun examples/",
                    data = " --data " + folder.path("data");
  refuses(program + "p4_table --limit-steps 1 --rows 32" + data, "no records in ");
  refuses(program + "mlp_elastic --threads 1 --out " + folder.path("out") + ' ' + kMnist + data,
          "no records in ");
  const std::string alone = "the parts of the model need two devices, got cpu:0 alone";
  refuses(program + "autoencoder_mp --threads 1 " + kMnist + data, alone);
  refuses(program + "resnet_mp --threads 1 " + kPictures, alone);
}

}  // namespace
}  // namespace weft
