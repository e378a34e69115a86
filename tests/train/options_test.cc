#include "weft/train/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "weft/tests/core/command_line.h"
#include "weft/tests/core/expect_error.h"

namespace weft::train {
namespace {

using testing::words;
using Words = std::vector<std::string>;

testing::Parsed<Options> parse(const Words& arguments, const std::vector<Flag>& flags = {},
                               Options program = {}) {
  program.example = "mlp";
  program.batch_size = 64;
  return testing::parse("mlp", arguments, program, flags);
}

void expect_refused(const testing::Parsed<Options>& parsed, const std::string& message) {
  EXPECT_EQ(parsed.status, 2) << message;
  EXPECT_HAS(parsed.err, message);
}

TEST(Options, DefaultsAreTheProgramsOwn) {
  const auto p = parse({});
  EXPECT_FALSE(p.status.has_value()) << p.err;
  EXPECT_EQ(p.options.batch_size, 64);
  EXPECT_EQ(p.options.epochs, 3);
  EXPECT_EQ(p.options.out, "outputs/mlp");
  EXPECT_EQ(p.options.dtype, DType::f32);
  EXPECT_TRUE(p.options.shuffle);
  EXPECT_EQ(p.options.data, data::kFashionMnistDir);
}

TEST(Options, EveryOptionArrives) {
  const auto p = parse(
      words("--device cpu:1 --dtype=f64 --epochs 7 --batch-size 16 --lr 0.5 --seed "
            "18446744073709551615 --no-shuffle --workers 0 --threads 3 --limit-steps 9 "
            "--checkpoint-every 11 --data d --out o --resume r --trace t --tensorboard "
            "--deterministic --graph --host-devices 2 --host-device-memory 64MiB --map-location "
            "cpu:1 --log-every 100 --summary --weights w"));
  ASSERT_FALSE(p.status.has_value()) << p.err;
  const Options& o = p.options;
  EXPECT_EQ(o.device, Device("cpu:1"));
  EXPECT_EQ(o.dtype, DType::f64);
  EXPECT_EQ(o.epochs, 7);
  EXPECT_EQ(o.batch_size, 16);
  EXPECT_EQ(o.lr, 0.5);
  EXPECT_EQ(o.seed, 18446744073709551615u);
  EXPECT_FALSE(o.shuffle);
  EXPECT_EQ(o.workers, 0);
  EXPECT_EQ(o.threads, 3);
  EXPECT_EQ(o.limit_steps, 9);
  EXPECT_EQ(o.checkpoint_every, 11);
  EXPECT_EQ(o.data + o.out + o.resume + o.trace + o.weights, "dortw");
  EXPECT_TRUE(o.tensorboard);
  EXPECT_TRUE(o.deterministic);
  EXPECT_EQ(o.graph, true);
  EXPECT_EQ(o.host_devices, 2);
  EXPECT_EQ(o.host_device_memory, 64 << 20);
  EXPECT_EQ(o.map_location, Device("cpu:1"));
  EXPECT_EQ(o.log_every, 100);
  EXPECT_TRUE(o.summary);
}

TEST(Options, StepsAreCapturedOrNotOrWherePossible) {
  EXPECT_EQ(parse({}).options.graph, std::nullopt);
  EXPECT_EQ(parse({"--graph"}).options.graph, true);
  EXPECT_EQ(parse({"--no-graph"}).options.graph, false);
}

TEST(Options, AProgramHasSomeOfItsOwn) {
  bool zero = false;
  std::int64_t depth = 50;
  double scale = 1;
  std::string schedule = "none", labels;
  std::int64_t hidden = 7;
  const std::vector<Flag> flags = {
      {"--zero", &zero, "start from zero"},
      {"--depth", &depth, "layers", {"18", "50"}},
      {"--scale", &scale, "of the width"},
      {"--schedule", &schedule, "of the rate", {"none", "step"}},
      {"--hidden", &hidden, "features"},
      {.name = "--labels", .value = &labels, .help = "a file", .excludes = {"--hidden"}}};
  auto p = parse({}, flags);
  EXPECT_FALSE(p.status.has_value()) << p.err;
  EXPECT_FALSE(zero);
  EXPECT_EQ(depth, 50);
  const FlagValues defaults = {{"zero", false},
                               {"depth", std::int64_t{50}},
                               {"scale", 1.0},
                               {"schedule", std::string("none")},
                               {"hidden", std::int64_t{7}},
                               {"labels", std::string()}};
  EXPECT_EQ(p.options.flags, defaults);
  p = parse({"--zero", "--depth=18", "--scale", "0.25", "--schedule", "step", "--epochs", "2"},
            flags);
  EXPECT_FALSE(p.status.has_value()) << p.err;
  EXPECT_TRUE(zero);
  EXPECT_EQ(depth, 18);
  EXPECT_EQ(scale, 0.25);
  EXPECT_EQ(schedule, "step");
  EXPECT_EQ(p.options.flags.at("scale"), FlagValues::mapped_type(0.25));
  EXPECT_EQ(p.options.epochs, 2);
  EXPECT_FALSE(parse({"--scale", "1/48"}, flags).status.has_value());
  EXPECT_EQ(scale, 1.0 / 48);
  for (const char* wrong : {"0", "-1", "1/0", "1/", "/2", "1/2/3", "x"}) {
    EXPECT_HAS(parse({"--scale", wrong}, flags).err, "' is no number above 0");
  }
  const auto refuses = [&](const Words& arguments, const std::string& message) {
    expect_refused(parse(arguments, flags), message);
  };
  refuses({"--depth", "34"}, "--depth: 34 not in {18,50}");
  refuses({"--depth"}, "--depth needs a value");
  refuses({"--zero=1"}, "--zero takes no value");
  for (const char* wrong : {"0", "-5", "1.5", "x", "99999999999999999999"}) {
    refuses({"--hidden", wrong},
            std::string("--hidden: '") + wrong + "' is no whole number from 1 to 1000000000");
  }
  refuses({"--labels", "w", "--hidden", "3"}, " excludes ");
  refuses({"--labels", ""}, "--labels: needs a name, got ''");
  EXPECT_HAS(parse({"--dept", "18"}, flags).err, "did you mean --depth?");
  EXPECT_HAS(parse({"--help"}, flags).out, "--schedule");
}

TEST(Options, TheLastOfTwoCounts) {
  EXPECT_EQ(parse({"--epochs", "1", "--no-shuffle", "--epochs", "2"}).options.epochs, 2);
}

TEST(Options, PrecisionAndWhereTheDataLies) {
  const train::Options defaults = parse({}).options;
  EXPECT_FALSE(defaults.amp);
  EXPECT_EQ(defaults.float32_matmul_precision, "highest");
  EXPECT_EQ(defaults.conv_fp32_precision, "tf32");
  EXPECT_FALSE(defaults.loader().device_resident);
  const train::Options set = parse({"--amp", "bf16", "--float32-matmul-precision", "high",
                                    "--conv-fp32-precision", "ieee", "--data-on-device"})
                                 .options;
  EXPECT_TRUE(set.amp);
  EXPECT_EQ(set.float32_matmul_precision, "high");
  EXPECT_EQ(set.conv_fp32_precision, "ieee");
  EXPECT_TRUE(set.loader().device_resident);
  EXPECT_FALSE(parse({"--amp", "off"}).options.amp);
  EXPECT_EQ(parse({"--amp", "f16"}).status, 2);
  EXPECT_EQ(parse({"--float32-matmul-precision", "low"}).status, 2);
  EXPECT_EQ(parse({"--conv-fp32-precision", "bf16"}).status, 2);
  EXPECT_EQ(parse({"--amp", "bf16", "--dtype", "f64"}).status, 2);
}

// torch.distributed.launch puts it before a program's own options; older versions with an
// underscore.
TEST(Options, LocalRankMayBeGivenAsTheOlderLauncherDoes) {
  ::unsetenv("LOCAL_RANK");
  const Options ranks{.local_rank = [] { return 0; }};
  EXPECT_EQ(parse({}, {}, ranks).options.local_rank(), 0);
  for (const char* argument : {"--local-rank=1", "--local_rank=1"}) {
    for (const char* known : {"", "1"}) {
      if (*known) ::setenv("LOCAL_RANK", known, 1);
      const auto p = parse({argument}, {}, ranks);
      EXPECT_FALSE(p.status.has_value()) << p.err;
      EXPECT_EQ(p.options.local_rank(), 1);
      ::unsetenv("LOCAL_RANK");
    }
  }
  EXPECT_HAS(parse({"--help"}, {}, ranks).out, "--local-rank");
  const auto refuses = [&](const char* argument, const Options& options,
                           const std::string& message) {
    expect_refused(parse({argument}, {}, options), message);
  };
  refuses("--local-rank=-1", ranks, "'-1' is no whole number from 0 to 1000000\n");
  refuses("--local-rank=0", {}, "unknown option --local-rank\n");  // of a single process
  ::setenv("LOCAL_RANK", "0", 1);
  refuses("--local_rank=1", ranks, "--local-rank 1, but the environment has LOCAL_RANK=0;");
  ::unsetenv("LOCAL_RANK");
}

TEST(Options, HelpNamesEveryOption) {
  const auto p = parse({"--help"});
  EXPECT_EQ(p.status, 0);
  for (const std::string& option :
       words("--device --dtype --epochs --batch-size --lr --seed --no-shuffle --workers --threads "
             "--limit-steps --data --out --resume --checkpoint-every --map-location "
             "--trace --deterministic --host-devices --host-device-memory --log-every --summary "
             "--amp "
             "--float32-matmul-precision --data-on-device --conv-fp32-precision --graph")) {
    EXPECT_HAS(p.out, option);
  }
}

TEST(Options, SizesHaveTheirUnit) {
  EXPECT_EQ(parse({}).options.host_device_memory, 0);
  EXPECT_EQ(parse({"--host-device-memory", "3KiB"}).options.host_device_memory, 3 << 10);
  EXPECT_EQ(parse({"--host-device-memory=1 GiB"}).options.host_device_memory, 1 << 30);
}

TEST(Options, WrongUsageIsStatusTwoAndSaysWhy) {
  const auto refuses = [](const Words& arguments, const std::string& message) {
    expect_refused(parse(arguments), message);
  };
  refuses({"--batchsize", "3"}, "unknown option --batchsize; did you mean --batch-size?");
  refuses({"--epoch=3"}, "unknown option --epoch; did you mean --epochs?");
  refuses({"--no-shufle"}, "unknown option --no-shufle; did you mean --no-shuffle?");
  refuses({"--xyzzy"}, "unknown option --xyzzy\n");
  refuses({"stray"}, "unexpected argument 'stray'");
  refuses({"--steps", "-1"}, "unknown option --steps; did you mean --limit-steps?");
  refuses({"--batch-size", "0"}, "--batch-size: '0' is no whole number from 1 to 1000000\n");
  refuses({"--batch-size", "-3"}, "--batch-size: '-3' is no whole number from 1");
  refuses({"--batch-size", "1.5"}, "--batch-size: '1.5' is no whole number from 1");
  refuses({"--batch-size", "many"}, "--batch-size: 'many' is no whole number from 1");
  refuses({"--batch-size", "99999999999999999999"}, "--batch-size: '99999999999999999999' is no");
  refuses({"--epochs", "0"}, "--epochs: '0' is no whole number from 1 to 1000000000\n");
  refuses({"--limit-steps", "-1"}, "--limit-steps: '-1' is no whole number from 0 to 1000000000\n");
  refuses({"--lr", "0"}, "'0' is no number above 0");
  refuses({"--lr", "nan"}, "'nan' is no number above 0");
  refuses({"--lr", "inf"}, "'inf' is no number above 0");
  refuses({"--workers", "-1"}, "--workers: '-1' is no whole number from 0 to 256\n");
  refuses({"--threads", "-1"}, "--threads: '-1' is no whole number from 0 to 4096\n");
  refuses({"--seed", "-1"}, "'-1' is no whole number from 0 to 18446744073709551615\n");
  refuses({"--seed", "18446744073709551616"}, "is no whole number");
  refuses({"--dtype", "f16"}, "--dtype: f16 not in {f32,f64}");
  refuses({"--amp", "fp8"}, "--amp: fp8 not in {off,bf16}");
  refuses({"--device", "gpu"}, "'gpu' is no device; use cpu, cpu:N, cuda or cuda:N");
  refuses({"--device"}, "--device needs a value");
  refuses({"--epochs"}, "--epochs needs a value");
  refuses({"--no-shuffle=maybe"}, "--no-shuffle takes no value");
  refuses({"--deterministic=3"}, "--deterministic takes no value");
  refuses({"--graph=1"}, "--graph takes no value");
  refuses({"--graph", "--no-graph"}, "--graph excludes --no-graph");
  refuses({"--host-devices", "0"}, "--host-devices: '0' is no whole number from 1 to 64\n");
  for (const char* size : {"", "64", "64mb", "64 mib", "MiB", "0MiB", "-1MiB", "1.5GiB", "64MiB,",
                           "9999999999999999GiB", "many"})
    refuses({"--host-device-memory", size}, "--host-device-memory: '" + std::string(size) +
                                                "' is no size like 512KiB, 64MiB or 2GiB\n");
  for (const char* path : {"--data", "--out", "--resume", "--trace"})
    refuses({path, ""}, std::string(path) + ": needs a name, got ''");
}

}  // namespace
}  // namespace weft::train
