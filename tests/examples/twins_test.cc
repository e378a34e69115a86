// The programs compared with their twins in examples/pytorch: 20 steps of each.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "weft/io/safetensors.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/examples/difference.h"
#include "weft/tests/io/files.h"

namespace weft {
namespace {

using nlohmann::json;

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> names;
  for (const auto& item : object.items()) names.push_back(item.key());
  return names;
}

class TwinsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("WEFT_PEER");
    if (given == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch and safetensors";
    python_ = given;
  }

  std::string log() const { return testing::read_file(folder.path("log")); }
  int status_of(const std::string& command) const {
    const int status = std::system((command + " >" + folder.path("log") + " 2>&1").c_str());
    EXPECT_TRUE(WIFEXITED(status)) << command;
    return WEXITSTATUS(status);
  }
  // Runs a program with its output in folder `out`; returns its metrics.
  json run(const std::string& program, const std::string& arguments, const std::string& out) const {
    const std::string command =
        program + " --device cpu --seed 1 " + arguments + " --out " + folder.path(out);
    EXPECT_EQ(status_of(command), 0) << command << '\n' << log();
    return json::parse(testing::read_file(folder.path(out + "/metrics.json")), nullptr, false);
  }
  json run_weft(const std::string& example, const std::string& arguments) const {
    return run_own("examples/" + example, arguments);
  }
  json run_twin(const std::string& example, const std::string& arguments,
                const std::string& out = "twin") const {
    return run(twin(example), arguments, out);
  }
  std::string twin(const std::string& example) const {
    return python("examples/pytorch/" + example + ".py");
  }
  std::string python(const std::string& script) const { return python_ + " -B " + script; }

  // The same with two ranks, started by the program itself or by weftrun.
  json run_ranks(const std::string& program, const std::string& arguments) const {
    return run_own(program + " --backend gloo", arguments);
  }
  json run_twin_ranks(const std::string& example, const std::string& arguments) const {
    return run(python("-m torch.distributed.run --standalone --nproc-per-node 2 "
                      "examples/pytorch/" +
                      example + ".py"),
               arguments, "twin");
  }

  // For 20 steps of a small transformer.
  std::string transformer_arguments() const {
    std::string text;
    for (int i = 0; i < 3000; ++i) text += static_cast<char>(97 + (i * i + i / 7) % 23);
    std::ofstream(folder.path("text.txt")) << text;
    return "--dtype f64 --context 12 --width 16 --limit-steps 20 --data " +
           folder.path("text.txt") + ' ';
  }

  // For 20 steps of a small ResNet that begins with the weights of a file, which this makes.
  std::string resnet_from_a_file() const {
    const std::string small = "--dtype f64 --image-size 32 --lr 1e-3 ";
    run_weft("resnet", small + "--batch-size 8 --limit-steps 1");
    const std::string weights = folder.path("weights.safetensors");
    std::filesystem::rename(folder.path("weft/model.safetensors"), weights);
    return small + "--limit-steps 20 --weights " + weights + ' ';
  }

  testing::TempFolder folder;

 private:
  // A program of weft; without the figures that the twins do not have.
  json run_own(const std::string& program, const std::string& arguments) const {
    json metrics = run(program, arguments, "weft");
    for (const std::string& key : keys(metrics)) {
      const std::set<std::string> more = {"flags",        "graph",   "memory",    "bytes_sent",
                                          "allreduce_ms", "wait_ms", "exposed_ms"};
      if (more.contains(key)) metrics.erase(key);
    }
    return metrics;
  }

  std::string python_;
};

// A single list, if there are several with names.
std::vector<double> all_losses(const json& losses) {
  if (losses.is_array()) return losses.get<std::vector<double>>();
  std::vector<double> all;
  for (const auto& list : losses) {
    for (const auto& loss : list) all.push_back(loss.get<double>());
  }
  return all;
}

void expect_same_metrics(const json& weft, const json& twin, double tolerance) {
  ASSERT_TRUE(weft.is_object() && twin.is_object());
  EXPECT_EQ(keys(weft), keys(twin));
  EXPECT_EQ(keys(weft["epochs"].at(0)), keys(twin["epochs"].at(0)));
  for (const char* key : {"example", "dtype", "seed", "batch_size", "world_size"}) {
    EXPECT_EQ(weft[key], twin[key]) << key;
  }
  if (twin["losses"].is_object()) {
    EXPECT_EQ(keys(weft["losses"]), keys(twin["losses"]));
  }
  const std::vector<double> expected = all_losses(twin["losses"]), got = all_losses(weft["losses"]);
  ASSERT_EQ(expected.size(), twin["losses"].is_object() ? 20U * twin["losses"].size() : 20U);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], tolerance * std::abs(expected[i])) << "step " << i;
  }
  ASSERT_EQ(keys(weft["test"]), keys(twin["test"]));
  for (const auto& [name, value] : twin["test"].items()) {
    const double figure = value.get<double>();
    // In f32 an image between two classes may be assigned to either.
    const double slack = twin["dtype"] == "f32" ? 2e-4 : tolerance * figure;
    EXPECT_NEAR(weft["test"][name].get<double>(), figure, slack) << name;
  }
}

void expect_same_weights(const std::string& weft, const std::string& twin, double tolerance) {
  const auto got = io::load_safetensors(weft).tensors,
             expected = io::load_safetensors(twin).tensors;
  std::map<std::string, Tensor> by_name(got.begin(), got.end());
  EXPECT_EQ(got.size(), expected.size());
  for (const auto& [name, weight] : expected) {
    ASSERT_EQ(by_name.count(name), 1U) << name;
    const Tensor& other = by_name[name];
    EXPECT_EQ(other.dtype(), weight.dtype()) << name;
    EXPECT_LE(testing::largest_difference(other, weight), tolerance) << name;
  }
}

struct Case {
  const char* name;
  const char* example;
  const char* arguments;
  double tolerance;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.example << ' ' << c.arguments; }

class Twins : public TwinsTest, public ::testing::WithParamInterface<Case> {};

TEST_P(Twins, TrainAlike) {
  const auto& [name, example, options, tolerance] = GetParam();
  const std::string arguments = std::string("--limit-steps 20 ") + options;
  const json weft = run_weft(example, arguments), twin = run_twin(example, arguments);
  expect_same_metrics(weft, twin, tolerance);
  expect_same_weights(folder.path("weft/model.safetensors"), folder.path("twin/model.safetensors"),
                      tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Twins,
    ::testing::Values(Case{"autoencoder", "autoencoder", "--dtype f64", 1e-9},
                      Case{"autoencoder_in_order", "autoencoder", "--dtype f64 --no-shuffle", 1e-9},
                      Case{"dcgan", "dcgan", "--dtype f64 --width 4", 1e-9},
                      Case{"gan_style", "gan_style", "--dtype f64 --width 4 --vgg-width 4", 1e-9},
                      Case{"mlp", "mlp", "--dtype f64 --lr 1e-3", 1e-9},
                      Case{"wgan_gp", "wgan_gp", "--dtype f64 --width 4", 1e-9},
                      Case{"mlp_in_order", "mlp", "--dtype f64 --no-shuffle --lr 1e-3", 1e-9},
                      Case{"mlp_f32", "mlp", "--dtype f32 --lr 1e-3", 1e-6},
                      Case{"mlp_f32_in_order", "mlp", "--dtype f32 --no-shuffle --lr 1e-3", 1e-6}),
    [](const auto& info) { return std::string(info.param.name); });

// Starts from the same file of weights, because normal numbers agree only to 2e-6, and the steps of
// a ResNet multiply differences. With this small learning rate 20 steps turn rounding errors into
// less than 2e-12. This was measured with 1, 3 and 16 threads, with each level of vectors, and in
// PyTorch alone with weights changed by one unit in the last place. If one program rounded the
// file's weights to f32, they would differ by 6e-8 where they are frozen, and by 0.09 and more
// after 20 steps of all.
TEST_F(TwinsTest, ResNetTrainsAlike) {
  const std::string small = resnet_from_a_file() + "--batch-size 8 ";
  for (const char* freeze : {"all-but-fc", "none"}) {
    const std::string arguments = small + "--freeze " + freeze;
    expect_same_metrics(run_weft("resnet", arguments), run_twin("resnet", arguments), 1e-9);
    expect_same_weights(folder.path("weft/model.safetensors"),
                        folder.path("twin/model.safetensors"), 1e-9);
  }
}

TEST_F(TwinsTest, CnnTrainsAlike) {
  testing::write_cifar10(folder.path("data"), 40, 50);
  const std::string arguments =
      "--dtype f64 --batch-size 8 --width-scale 1/64 --limit-steps 20 --data " +
      folder.path("data");
  expect_same_metrics(run_weft("cnn", arguments), run_twin("cnn", arguments), 1e-9);
  expect_same_weights(folder.path("weft/model.safetensors"), folder.path("twin/model.safetensors"),
                      1e-9);
}

TEST_F(TwinsTest, CharTransformerTrainsAlike) {
  const std::string arguments = transformer_arguments() + "--batch-size 8 --start a --sample 9";
  expect_same_metrics(run_weft("char_transformer", arguments),
                      run_twin("char_transformer", arguments), 1e-9);
  expect_same_weights(folder.path("weft/model.safetensors"), folder.path("twin/model.safetensors"),
                      1e-9);
}

TEST_F(TwinsTest, TheTransformersRanksTrainAlike) {
  const std::string weftrun = "launch/weftrun --nproc-per-node 2 examples/";
  for (const auto& [example, options] :
       {std::pair("char_transformer_fsdp", "--batch-size 4"),
        {"char_transformer_fsdp", "--batch-size 4 --no-shuffle --strategy zero2"},
        {"char_transformer_tp", "--batch-size 8"},
        {"char_transformer_tp", "--batch-size 8 --no-shuffle --sequence-parallel"}}) {
    SCOPED_TRACE(example + std::string(" ") + options);
    const std::string arguments = transformer_arguments() + options;
    expect_same_metrics(run_ranks(weftrun + example, arguments), run_twin_ranks(example, arguments),
                        1e-9);
    expect_same_weights(folder.path("weft/model.safetensors"),
                        folder.path("twin/model.safetensors"), 1e-9);
  }
}

// safetensors and transformers read the checkpoint's index and its files, and find what one process
// saves that goes on from it, without a step.
TEST_F(TwinsTest, PythonReadsTheCheckpointOfRanks) {
  const std::string arguments = transformer_arguments(), saved = folder.path("weft/"),
                    read = folder.path("read.safetensors");
  for (const auto& [example, options] : {std::pair("char_transformer_fsdp", "--batch-size 4"),
                                         {"char_transformer_tp", "--batch-size 8"}}) {
    SCOPED_TRACE(example);
    run_ranks(std::string("launch/weftrun --nproc-per-node 2 examples/") + example,
              arguments + options);
    // The final weights, which transformers would take in place of the index.
    std::filesystem::remove(saved + "model.safetensors");
    const std::string script = python("tests/io/read_slices.py ");
    ASSERT_EQ(status_of(script + saved + "model.safetensors.index.json " + read), 0) << log();
    run_weft("char_transformer", arguments + "--batch-size 8 --sample 1 --resume latest");
    expect_same_weights(saved + "model.safetensors", read, 0);
    std::filesystem::remove_all(saved);
  }
}

TEST_F(TwinsTest, RanksTrainAlike) {
  testing::write_cifar10(folder.path("data"), 40, 50);
  const std::pair<const char*, std::string> kRuns[] = {
      {"mlp_ddp", ""},
      {"mlp_ddp", "--no-shuffle"},
      {"autoencoder_ddp", "--batch-size 8"},
      {"cnn_ddp", "--batch-size 4 --width-scale 1/64 --data " + folder.path("data")},
      {"mlp_horovod", "--lr 1e-3"},
      {"dcgan_horovod", "--batch-size 8 --width 4"}};
  const std::string weftrun = "launch/weftrun --nproc-per-node 2 examples/";
  for (const auto& [example, options] : kRuns) {
    const std::string arguments = "--dtype f64 --limit-steps 20 " + options;
    expect_same_metrics(run_ranks(weftrun + example, arguments), run_twin_ranks(example, arguments),
                        1e-9);
    expect_same_weights(folder.path("weft/model.safetensors"),
                        folder.path("twin/model.safetensors"), 1e-9);
  }
}

// Each rank uses its own batch statistics, and rank 0 keeps the running ones. Starts from a file of
// weights as above. With 8 images per rank: with 4 the last batch norms have only 4 values per
// channel, and the two runs diverge within 10 steps, since each step multiplies rounding errors by
// about 30.
TEST_F(TwinsTest, ResNetsRanksTrainAlike) {
  const std::string arguments = resnet_from_a_file() + "--batch-size 16";
  expect_same_metrics(run_ranks("examples/resnet_ddp --init-method env://", arguments),
                      run_twin_ranks("resnet_ddp", arguments), 1e-9);
  expect_same_weights(folder.path("weft/model.safetensors"), folder.path("twin/model.safetensors"),
                      1e-9);
}

// The same with parameters in parts. Its batch is that of a rank.
TEST_F(TwinsTest, ResNetsRanksWithPartsTrainAlike) {
  const std::string small = resnet_from_a_file() + "--batch-size 8 ";
  for (const char* options : {"", "--strategy zero2"}) {
    SCOPED_TRACE(options);
    const std::string arguments = small + options;
    expect_same_metrics(
        run_ranks("launch/weftrun --nproc-per-node 2 examples/resnet_fsdp", arguments),
        run_twin_ranks("resnet_fsdp", arguments), 1e-9);
    expect_same_weights(folder.path("weft/model.safetensors"),
                        folder.path("twin/model.safetensors"), 1e-9);
  }
}

// Both round the same values to bf16's 8 bits. If they sum in another order, a logit may be rounded
// to the other neighbour, which is 2^-8 of it away, and this changes the loss. That is rare, so the
// two runs stay closer to each other than to f32: otherwise one of them would not have used
// autocast.
TEST_F(TwinsTest, AutocastTrainsAlike) {
  const json weft = run_weft("mlp", "--limit-steps 20 --lr 1e-3 --amp bf16"),
             twin = run_twin("mlp", "--limit-steps 20 --lr 1e-3 --amp bf16");
  expect_same_metrics(weft, twin, 0x1p-8);
  expect_same_weights(folder.path("weft/model.safetensors"), folder.path("twin/model.safetensors"),
                      0x1p-8);
  const auto bf16 = all_losses(weft["losses"]), expected = all_losses(twin["losses"]),
             f32 = all_losses(run_weft("mlp", "--limit-steps 20 --lr 1e-3")["losses"]);
  double between = 0, from_f32 = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    between += std::abs(bf16[i] - expected[i]);
    from_f32 += std::abs(f32[i] - expected[i]);
  }
  EXPECT_LT(between, from_f32 / 4);
}

// Like the programs: status 2 for wrong usage, 1 for what cannot be read or written, each with a
// remedy.
TEST_F(TwinsTest, TwinsSayWhatIsWrong) {
  const struct {
    const char *example, *arguments;
    int status;
    const char* text;
  } kRuns[] = {
      {"resnet", "--help", 0, "--amp {off,bf16}"},
      {"resnet", "--depth 19", 2, "invalid choice: 19 (choose from 18, 34, 50, 101)"},
      {"resnet", "--image-size 0", 2, "'0' is no whole number from 1 to 1000000000"},
      {"resnet", "--data nowhere", 1,
       "resnet: error: no folder nowhere/train; name one with train/CLASS/*.jpg and "
       "val/CLASS/*.jpg (--data DIR), or train on made-up images (--data fake)"},
      {"dcgan", "--help", 0, "--latent"},
      {"dcgan", "--batch-size 0", 2, "'0' is no whole number from 1 to 1000000"},
      {"dcgan", "--amp bf16 --dtype f64", 2, "--amp bf16 needs --dtype f32"},
      {"dcgan", "--data nowhere", 1, "name a folder of MNIST's IDX files (--data DIR)"},
      {"dcgan", "--device gpu", 2, "'gpu' is no device; use cpu, cuda or cuda:N"},
      {"dcgan", "--device cuda:99", 2, "no device cuda:99: PyTorch finds "},
      {"cnn", "--help", 0, "times the width of every layer"},
      {"cnn", "--width-scale 1/0", 2, "'1/0' is no number above 0 and below 1e9, like 0.25 or 1/4"},
      {"cnn", "--steps -1", 2, "unrecognized arguments: --steps -1"},
      {"cnn", "--data nowhere", 1,
       "cnn: error: no file nowhere/data_batch_1.bin; name a folder of CIFAR-10's binary files "
       "(--data DIR), or train on made-up images (--data fake)"},
  };
  for (const auto& [example, arguments, status, text] : kRuns) {
    EXPECT_EQ(status_of(twin(example) + " " + arguments), status) << example << ' ' << arguments;
    EXPECT_HAS(log(), text);
    EXPECT_LACKS(log(), "Traceback");
  }
}

TEST_F(TwinsTest, TwinResumesWhereItWas) {
  const json whole = run_twin("mlp", "--limit-steps 20");
  run_twin("mlp", "--limit-steps 12", "part");
  const json resumed = run_twin(
      "mlp", "--limit-steps 20 --workers 0 --resume " + folder.path("part/checkpoint.pt"), "rest");
  EXPECT_EQ(resumed["losses"], whole["losses"]);
  EXPECT_EQ(resumed["test"], whole["test"]);
}

}  // namespace
}  // namespace weft
