// Records made by hand: what is compared, how far apart the sides are said to be, and which cause
// is named.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/train/proof/causes.h"
#include "weft/train/proof/compare.h"
#include "weft/train/proof/records.h"

namespace weft::train::proof {
namespace {

using nlohmann::json;
using Lines = std::vector<json>;

// Two elements; the signs of the first are + + - -, of the second + - + -.
json digest(double x, double y) {
  return {{"shape", {2}},
          {"dtype", "f32"},
          {"hash", json({x, y}).dump()},
          {"l2", std::hypot(x, y)},
          {"signs", {x + y, x - y, y - x, -x - y}}};
}

json with(json line, const json& more) {
  line.update(more);
  return line;
}

// The lines of each rank in a right run: 2 ranks with 2 samples each, 3 steps.
std::vector<Lines> right_run() {
  std::vector<Lines> ranks;
  for (int r = 0; r < 2; ++r) {
    Lines lines = {{{"kind", "run"},
                    {"program", "net"},
                    {"rank", r},
                    {"ranks", 2},
                    {"batches", 2},
                    {"dataset_size", 12}},
                   {{"kind", "module"}, {"name", "0"}, {"type", "Linear"}},
                   {{"kind", "optimizer"},
                    {"optimizer", 0},
                    {"type", "SGD"},
                    {"parameters", {"0.weight", "0.bias"}}}};
    for (int s = 0; s < 3; ++s) {
      const auto output = [&](const char* module, const char* type, double x) {
        lines.push_back(with(digest(x + r, s), {{"kind", "output"},
                                                {"step", s},
                                                {"module", module},
                                                {"type", type},
                                                {"call", 0},
                                                {"index", 0},
                                                {"training", true}}));
      };
      lines.push_back({{"kind", "batch"},
                       {"step", s},
                       {"epoch", 0},
                       {"indices", {4 * s + r, 4 * s + 2 + r}},
                       {"generator", "state " + std::to_string(r)}});
      output("0", "Linear", 1);
      output("1", "Dropout", 2);
      lines.push_back({{"kind", "update"},
                       {"step", s},
                       {"event", 0},
                       {"optimizer", 0},
                       {"groups", {{{"lr", 0.1}}}}});
      for (const char* name : {"0.weight", "0.bias"}) {
        lines.push_back(
            with(digest(s, 3), {{"kind", "gradient"}, {"step", s}, {"event", 0}, {"name", name}}));
      }
      for (const char* name : {"0.weight", "0.bias"}) {
        lines.push_back(with(digest(s, 4), {{"kind", "weight"}, {"step", s}, {"name", name}}));
      }
      lines.push_back({{"kind", "loss"}, {"step", s}, {"values", {{"", 0.5 * r}}}});
    }
    lines.push_back({{"kind", "end"}, {"step", 3}});
    ranks.push_back(lines);
  }
  return ranks;
}

class Causes : public ::testing::Test {
 protected:
  std::vector<Record> read(const std::vector<Lines>& ranks) const {
    const std::string name = folder.path("run" + std::to_string(runs++));
    std::filesystem::create_directories(name);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      std::string text;
      for (const json& line : ranks[r]) text += line.dump() + "\n";
      weft::testing::write_file(name + "/rank-" + std::to_string(r) + ".jsonl", text);
    }
    return read_records(name);
  }
  // The causes for ranks whose records differ from a right run by `change`. The one process differs
  // from the ranks by `replay`.
  using Change = std::function<void(std::vector<Lines>&)>;
  std::vector<Cause> causes_of(const Change& change, const Change& replay = {}) const {
    std::vector<Lines> ranks = right_run();
    change(ranks);
    const auto recorded = read(ranks);
    if (replay) replay(ranks);
    const auto one = read(ranks);
    return find_causes(recorded, one, compare(recorded, one, 0));
  }
  // Expects one cause, with this name and this text in it.
  void names(const std::vector<Cause>& causes, const std::string& name, Weight weight,
             const std::string& text) const {
    ASSERT_EQ(causes.size(), 1U) << (causes.size() > 1 ? causes[1].text : "");
    EXPECT_EQ(causes[0].name, name);
    EXPECT_EQ(causes[0].weight, weight);
    EXPECT_HAS(causes[0].text, text);
  }

  weft::testing::TempFolder folder;
  mutable int runs = 0;
};

// Changes the lines of a kind and step.
void edit(Lines& lines, const std::string& kind, int step,
          const std::function<void(json&)>& change) {
  for (json& line : lines) {
    if (line.at("kind") == kind && (step < 0 || line.at("step") == step)) change(line);
  }
}

TEST_F(Causes, ARightRunIsEqualAndHasNone) {
  const auto ranks = read(right_run());
  const Comparison found = compare(ranks, ranks, 0);
  EXPECT_EQ(found.steps, 3);
  EXPECT_EQ(found.compared, (std::map<std::string, std::int64_t>{
                                {"gradient", 12}, {"loss", 6}, {"output", 12}, {"weight", 12}}));
  EXPECT_FALSE(found.first);
  EXPECT_TRUE(found.left_out.empty());
  EXPECT_TRUE(find_causes(ranks, ranks, found).empty());
}

// Ordered by step, then as in the run; the distance is that between the tensors.
TEST_F(Causes, TheFirstDifferenceAndHowFarItIs) {
  std::vector<Lines> other = right_run();
  edit(other[0], "weight", 1, [](json& line) { line.update(digest(1, 4.5)); });
  edit(other[1], "gradient", 1, [](json& line) { line.update(digest(1, 7)); });
  edit(other[1], "output", 2, [](json& line) { line.update(digest(0, 0)); });
  const Comparison found = compare(read(right_run()), read(other), 0);
  ASSERT_TRUE(found.first);
  EXPECT_EQ(found.first->item.text(), "the gradient of 0.weight");
  EXPECT_EQ(found.first->item.step, 1);
  EXPECT_EQ(found.first->rank, 1);
  EXPECT_DOUBLE_EQ(found.first->absolute, 4);
  EXPECT_DOUBLE_EQ(found.first->relative, 4 / std::hypot(1, 7));
  EXPECT_EQ(found.unlike, 2 + 2 + 2);
  EXPECT_DOUBLE_EQ(found.worst, 1);
  EXPECT_EQ(found.first->item.key(), found.beyond->item.key());
}

TEST_F(Causes, ABoundAllowsRoundingAndWhatIsNothingElse) {
  std::vector<Lines> ranks = right_run(), other = right_run();
  const auto set = [](std::vector<Lines>& run, const char* name, double x) {
    for (Lines& lines : run) {
      edit(lines, "gradient", 0, [&](json& line) {
        if (line.at("name") == name) line.update(digest(x, 3));
      });
    }
  };
  set(other, "0.weight", 1e-10);
  Comparison found = compare(read(ranks), read(other), 1e-9);
  EXPECT_TRUE(found.first);
  EXPECT_FALSE(found.beyond);
  set(other, "0.weight", 1e-8);
  EXPECT_TRUE(compare(read(ranks), read(other), 1e-9).beyond);
  // A gradient that is all rounding, beside one of 3.
  set(other, "0.weight", 0);
  for (auto* run : {&ranks, &other}) {
    for (Lines& lines : *run) {
      edit(lines, "gradient", 0, [&](json& line) {
        if (line.at("name") == "0.bias") line.update(digest(run == &ranks ? 1e-17 : -1e-17, 0));
      });
    }
  }
  found = compare(read(ranks), read(other), 1e-9);
  EXPECT_EQ(found.unlike, 2);
  EXPECT_FALSE(found.beyond) << found.beyond->relative;
}

TEST_F(Causes, OtherShapesNaNAndWhatIsLeftOut) {
  std::vector<Lines> other = right_run();
  edit(other[0], "gradient", 0, [](json& line) { line["shape"] = {1, 2}; });
  EXPECT_EQ(compare(read(right_run()), read(other), 1).beyond->absolute, HUGE_VAL);
  other = right_run();
  edit(other[0], "gradient", 0, [](json& line) {
    line["hash"] = "x";
    line["signs"][0] = line["l2"] = "nan";
  });
  EXPECT_EQ(compare(read(right_run()), read(other), 1).beyond->relative, HUGE_VAL);
  other = right_run();
  edit(other[0], "gradient", 0, [](json& line) { line["missing"] = true; });
  EXPECT_TRUE(compare(read(right_run()), read(other), 1).beyond);
  other = right_run();
  for (Lines& lines : other) {
    edit(lines, "gradient", -1, [](json& line) { line["part"] = true; });
    edit(lines, "output", 2, [](json& line) { line["call"] = 1; });
  }
  const Comparison found = compare(read(right_run()), read(other), 0);
  EXPECT_FALSE(found.first);
  EXPECT_EQ(found.compared.count("gradient"), 0U);
  EXPECT_EQ(found.left_out, (std::map<std::string, std::int64_t>{
                                {"the gradient is cut, and a rank has a part of it", 12},
                                {"the other side has no such output", 4},
                                {"only the second run has this output", 4}}));
  EXPECT_EQ(found.unmatched, 8);
}

// Elements that are not finite are compared by their places, and do not hide differences of the
// others.
TEST_F(Causes, NaNAndInfinity) {
  const auto run = [](const char* places, double x, const json& loss) {
    std::vector<Lines> ranks = right_run();
    edit(ranks[0], "gradient", 0, [&](json& line) {
      if (line.at("name") == "0.bias") line.update(with(digest(x, 3), {{"not_finite", places}}));
    });
    edit(ranks[0], "loss", 0, [&](json& line) { line["values"] = {{"a", "inf"}, {"b", loss}}; });
    return ranks;
  };
  const auto beyond = [&](const std::vector<Lines>& other) {
    return compare(read(run("1", 0, 1)), read(other), 1e-3).beyond;
  };
  EXPECT_FALSE(beyond(run("1", 1e-5, 1)));
  EXPECT_NEAR(beyond(run("1", 3, 1))->absolute, 3, 1e-9);
  EXPECT_EQ(beyond(run("2", 1e-5, 1))->absolute, HUGE_VAL);
  EXPECT_EQ(beyond(run("1", 0, 2))->item.name, "b");
  EXPECT_EQ(beyond(run("1", 0, "nan"))->absolute, HUGE_VAL);
}

TEST_F(Causes, AWeightThatIsNotTheModels) {
  std::vector<Lines> ranks = right_run();
  for (Lines& lines : ranks) {
    edit(lines, "gradient", -1, [](json& line) {
      if (line.at("name") == "0.bias") line["name"] = "optimizer 0 parameter 1";
    });
  }
  const Comparison found = compare(read(ranks), read(ranks), 0);
  ASSERT_EQ(found.left_out.size(), 1U);
  EXPECT_EQ(found.left_out.begin()->first,
            "only the gradient of a parameter is compared, and not its weight: the model that "
            "Recorder::resume() or Trial::train() gets does not have it");
  EXPECT_EQ(found.left_out.begin()->second, 6);
}

// An output may have another shape if it can be a part, so only if ranks share a batch.
TEST_F(Causes, OutputsOfOtherShapes) {
  for (const int batches : {1, 2}) {
    std::vector<Lines> ranks = right_run(), one = right_run();
    for (Lines& lines : ranks) {
      lines[0]["batches"] = batches;
      edit(lines, "output", 0, [](json& line) { line["shape"] = {1}; });
    }
    const Comparison found = compare(read(ranks), read(one), 0);
    EXPECT_EQ(found.unlike, batches == 1 ? 0 : 4);
    EXPECT_EQ(found.left_out.size(), batches == 1 ? 1U : 0U);
  }
}

// What all ranks share, the one process writes once.
TEST_F(Causes, RanksThatShareABatch) {
  std::vector<Lines> ranks = right_run(), one = right_run();
  for (Lines& lines : ranks) lines[0]["batches"] = 1;
  one.pop_back();
  edit(ranks[1], "batch", -1, [&](json& line) { line["indices"] = {4, 5}; });
  edit(ranks[0], "batch", -1, [&](json& line) { line["indices"] = {4, 5}; });
  edit(ranks[1], "output", -1,
       [](json& line) { line["module"] = line.at("type") == "Linear" ? "5" : "6"; });
  edit(ranks[1], "loss", -1, [](json& line) { line["values"] = {{"", 0.0}}; });
  for (int s = 0; s < 3; ++s) {
    const json output = {{"kind", "output"}, {"step", s}};
    one[0].push_back(with(with(digest(2, s), output), {{"module", "5"}}));
    one[0].push_back(with(with(digest(3, s), output), {{"module", "6"}}));
  }
  const auto a = read(ranks), b = read(one);
  const Comparison found = compare(a, b, 0);
  EXPECT_EQ(found.compared.at("output"), 12);
  EXPECT_TRUE(find_causes(a, b, found).empty());
}

TEST_F(Causes, AnOptionPerRank) {
  names(causes_of([](auto& ranks) {
          edit(ranks[1], "update", -1, [](json& line) { line["groups"][0]["lr"] = 0.2; });
        }),
        "learning_rate", Weight::mistake,
        "step 0: lr of optimizer 0 is 0.1 on rank 0 and 0.2 on rank 1");
  // The other options come before and after it in the alphabet.
  names(causes_of([](auto& ranks) {
          for (std::size_t r = 0; r < ranks.size(); ++r) {
            edit(ranks[r], "update", -1, [&](json& line) {
              line["groups"][0] = {{"lr", r == 0 ? 0.1 : 0.2},
                                   {"beta2", r == 0 ? 0.99 : 0.9},
                                   {"momentum", r == 0 ? 0.9 : 0.8}};
            });
          }
        }),
        "learning_rate", Weight::mistake,
        "step 0: lr of optimizer 0 is 0.1 on rank 0 and 0.2 on rank 1");
  names(causes_of([](auto& ranks) {
          for (std::size_t r = 0; r < ranks.size(); ++r) {
            edit(ranks[r], "update", 1,
                 [&](json& line) { line["groups"][0]["beta2"] = r == 0 ? 0.999 : 0.99; });
          }
        }),
        "optimizer_option", Weight::mistake,
        "step 1: beta2 of optimizer 0 is 0.999 on rank 0 and 0.99 on rank 1");
  // Stages of a pipeline have optimisers of their own.
  EXPECT_TRUE(causes_of([](auto& ranks) {
                edit(ranks[1], "update", -1, [](json& line) { line["groups"][0]["lr"] = 0.2; });
                ranks[1][2]["parameters"] = {"1.weight"};
              }).empty());
}

TEST_F(Causes, AGradientThatNothingReduces) {
  const auto differ = [](int step, const std::string& name) {
    return [=](std::vector<Lines>& ranks) {
      edit(ranks[1], "gradient", step, [&](json& line) {
        if (name.empty() || line.at("name") == name) line["hash"] = "own";
      });
      edit(ranks[1], "weight", 2, [](json& line) { line["hash"] = "own"; });
    };
  };
  names(causes_of(differ(-1, "0.bias")), "unreduced_gradient", Weight::mistake,
        "step 0: the gradient of 0.bias differs between ranks 0 and 1 when it is used, while 1 "
        "other gradients are equal: nothing reduces it");
  names(causes_of(differ(1, "")), "unreduced_gradient", Weight::mistake,
        "step 1: all gradients (0.bias, 0.weight) differ between ranks 0 and 1 when they are used, "
        "and in 2 of 3 steps they do not");
  names(causes_of(differ(-1, "")), "unreduced_gradient", Weight::mistake, "in every step");
}

TEST_F(Causes, ReplicasThatBeganUnlike) {
  names(causes_of([](auto& ranks) {
          edit(ranks[1], "weight", -1, [](json& line) { line["hash"] = "own"; });
        }),
        "unlike_replicas", Weight::mistake,
        "step 0: 0.weight differs between ranks 0 and 1 after the update, though");
}

// If the one process reads its inputs from files, the indices do not tell which samples they are.
TEST_F(Causes, SamplesThatAreDrawnAndDataSetsOfTheRanksOwn) {
  const auto drawn = [](int size, int shift, const char* label, const std::vector<int>& saved) {
    return [=](std::vector<Lines>& ranks) {
      for (int r = 0; r < 2; ++r) {
        Lines& lines = ranks[static_cast<std::size_t>(r)];
        lines[0]["dataset_size"] = size;
        edit(lines, "batch", -1, [&](json& line) {
          const int first = 2 * line.at("step").get<int>() + r * shift;
          line["indices"] = {first, first + 1};
          line["inputs"] = {"x" + std::to_string(r), r == 0 ? "label" : label};
          line["saved"] = saved;
        });
      }
    };
  };
  names(causes_of(drawn(12, 0, "label", {0, 1})), "same_samples", Weight::mistake,
        "both read 6 samples");
  EXPECT_TRUE(causes_of(drawn(12, 0, "own", {0, 1})).empty());
  // The same samples, in other batches.
  names(causes_of(drawn(4, 2, "own", {})), "same_samples", Weight::mistake, "both read 4 samples");
  EXPECT_TRUE(causes_of(drawn(4, 2, "own", {0, 1})).empty());
}

TEST_F(Causes, RanksThatReadTheSameSamples) {
  names(causes_of([](auto& ranks) {
          edit(ranks[1], "batch", -1, [](json& line) {
            for (json& index : line["indices"]) index = index.get<int>() - 1;
          });
        }),
        "same_samples", Weight::mistake, "ranks 0 and 1 both read 6 samples (0, 2, 4 and 3 more)");
  // A rank that draws with replacement also reads some of its own samples again.
  EXPECT_TRUE(causes_of([](auto& ranks) {
                for (Lines& lines : ranks) {
                  edit(lines, "batch", -1, [](json& line) { line["indices"] = {1, 1}; });
                }
              }).empty());
  // But two ranks do not read the same samples in each step.
  names(causes_of([](auto& ranks) {
          for (Lines& lines : ranks) {
            for (int s = 0; s < 3; ++s) {
              edit(lines, "batch", s, [&](json& line) { line["indices"] = {4 * s, (5 * s) % 9}; });
            }
          }
        }),
        "same_samples", Weight::mistake, "ranks 0 and 1 both read 5 samples (0, 1, 4 and 2 more)");
  // In few draws, ranks may share samples by chance although no rank repeats one.
  EXPECT_TRUE(causes_of([](auto& ranks) {
                edit(ranks[1], "batch", 0, [](json& line) { line["indices"] = {0, 4}; });
              }).empty());
}

// The first epoch has a sample of padding.
TEST_F(Causes, RanksThatReadTheSameSamplesInALaterEpoch) {
  const auto causes = causes_of([](auto& ranks) {
    for (int r = 0; r < 2; ++r) {
      ranks[r][0]["dataset_size"] = 13;
      edit(ranks[r], "batch", -1, [&](json& line) {
        line["indices"] = {0, 1, 2, 3, 4, 5, 6};
        line["epoch"] = line.at("step").template get<int>() > 0;
      });
    }
    edit(ranks[1], "batch", 0, [](json& line) { line["indices"] = {7, 8, 9, 10, 11, 12, 0}; });
  });
  ASSERT_EQ(causes.size(), 2U);
  EXPECT_EQ(causes[0].name, "padded_samples");
  EXPECT_EQ(causes[1].name, "same_samples");
  EXPECT_HAS(causes[1].text, "epoch 1: ranks 0 and 1 both read 7 samples");
}

TEST_F(Causes, PaddedSamplesAreANote) {
  names(causes_of([](auto& ranks) {
          for (Lines& lines : ranks) lines[0]["dataset_size"] = 11;
          edit(ranks[1], "batch", 2, [](json& line) { line["indices"] = {9, 0}; });
        }),
        "padded_samples", Weight::note,
        "epoch 0: the samplers give 12 samples of a data set of 11: ranks 0 and 1 both read 0");
}

TEST_F(Causes, AMeanOfMeans) {
  names(causes_of([](auto& ranks) {
          edit(ranks[1], "batch", 1, [](json& line) { line["indices"] = {5}; });
        }),
        "mean_of_means", Weight::mistake, "step 1: rank 0 has 2 samples and rank 1 has 1");
}

// Both sides then differ in that step.
TEST_F(Causes, AMeanOfWeightedMeans) {
  const auto smaller = [](auto& ranks) {
    edit(ranks[1], "batch", 1, [](json& line) { line["indices"] = {5}; });
  };
  for (const int step : {0, 1}) {
    names(causes_of(smaller,
                    [&](auto& one) {
                      for (Lines& lines : one) {
                        edit(lines, "gradient", step, [](json& line) { line["hash"] = "other"; });
                      }
                    }),
          "mean_of_means", step == 1 ? Weight::limit : Weight::note,
          "a program that weights each rank's loss by its number of samples is right");
  }
}

TEST_F(Causes, DrawsOfADropout) {
  const auto right = [](auto&) {};
  names(causes_of(right,
                  [](auto& one) {
                    edit(one[1], "output", 1, [](json& line) {
                      if (line.at("type") == "Dropout") line["hash"] = "other draws";
                    });
                  }),
        "dropout_draws", Weight::mistake,
        "step 1, rank 1: the output of 1 (Dropout), call 0 is the first tensor that differs");
  names(causes_of(right,
                  [](auto& one) {
                    edit(one[1], "batch", 1, [](json& line) { line["generator"] = "other"; });
                    edit(one[1], "gradient", 1, [](json& line) { line["hash"] = "other"; });
                  }),
        "dropout_draws", Weight::mistake, "step 1: the generator of rank 1 is in another state");
  names(causes_of([](auto& ranks) {
          for (Lines& lines : ranks) {
            edit(lines, "batch", -1, [](json& line) { line["generator"] = "one"; });
          }
        }),
        "equal_draws", Weight::note, "ranks 0 and 1 draw the same random numbers: 1 (Dropout)");
}

TEST_F(Causes, BatchNormsOfTheRanksOwnBatches) {
  const auto norms = [](std::vector<Lines>& ranks) {
    for (Lines& lines : ranks) {
      edit(lines, "output", -1, [](json& line) {
        if (line.at("type") == "Dropout") line["type"] = "BatchNorm2d";
      });
    }
  };
  names(causes_of(norms), "local_batch_norm", Weight::note, "1 (BatchNorm2d) and others like it");
  const auto other = [](auto& one) {
    edit(one[0], "output", 0, [](json& line) {
      if (line.at("type") == "BatchNorm2d") line["hash"] = "of its batch";
    });
  };
  names(causes_of(norms, other), "synced_batch_norm", Weight::limit,
        "the output of 1 (BatchNorm2d), call 0 is the first");
  names(causes_of(
            [&](auto& ranks) {
              norms(ranks);
              for (Lines& lines : ranks) lines[0]["batches"] = 1;
            },
            other),
        "local_batch_norm", Weight::limit, "the output of 1 (BatchNorm2d), call 0 is the first");
}

// Each rank has two micro-batches in step 1; the second one adds (0, 2) to the gradients.
TEST_F(Causes, AMicroBatchThatAStageLacks) {
  std::vector<Lines> one = right_run();
  for (Lines& lines : one) {
    for (const char* name : {"0.weight", "0.bias"}) {
      for (const int k : {0, 1}) {
        lines.insert(
            lines.end() - 1,
            with(
                digest(1, 1 + 2 * k),
                {{"kind", "micro_batch"}, {"step", 1}, {"event", 0}, {"call", k}, {"name", name}}));
      }
    }
  }
  const auto cause_of = [&](double x, double y, const json& shape = {2}) {
    std::vector<Lines> ranks = right_run();
    for (Lines& lines : ranks) {
      edit(lines, "gradient", 1, [&](json& line) {
        if (line.at("name") == "0.weight") line.update(with(digest(x, y), {{"shape", shape}}));
      });
    }
    const auto first = read(ranks), second = read(one);
    const auto cause = lost_micro_batch(first, second, *compare(first, second, 0).first);
    return cause ? std::vector{*cause} : std::vector<Cause>();
  };
  const std::string text =
      "step 1: micro-batch 1 (of 0 to 1) is missing in the gradient of 0.weight, which is what the "
      "other micro-batches add";
  names(cause_of(1, 1), "lost_micro_batch", Weight::mistake, text + ": does");
  names(cause_of(2, 2), "lost_micro_batch", Weight::mistake, text + ", times 2: does");
  EXPECT_TRUE(cause_of(1, 1.5).empty());
  EXPECT_TRUE(cause_of(2, 6).empty());
  EXPECT_TRUE(cause_of(-1, -1).empty());
  EXPECT_TRUE(cause_of(2, 2, {1}).empty());  // for a single number some factor always fits
  EXPECT_EQ(cause_of(1, 1, {1}).size(), 1);
}

TEST_F(Causes, NoCauseIsAnAnswer) {
  EXPECT_TRUE(causes_of([](auto&) {},
                        [](auto& one) {
                          edit(one[1], "gradient", 1, [](json& line) { line["hash"] = "other"; });
                        })
                  .empty());
}

TEST_F(Causes, WhatIsNoRecordIsRefused) {
  EXPECT_WEFT_ERROR(read_records(folder.path("none")), Io, "no records in ");
  std::vector<Lines> ranks = right_run();
  ranks[1].pop_back();
  EXPECT_WEFT_ERROR(read(ranks), Io,
                    "rank-1.jsonl ends before its run did: was the program killed, does it not "
                    "call Recorder::finish(), or does it catch what Trial::train() throws?");
  ranks = right_run();
  ranks[0].erase(ranks[0].begin());
  EXPECT_WEFT_ERROR(read(ranks), Io, "rank-0.jsonl does not say which run it is of");
  ranks = right_run();
  ranks[0][3].erase("indices");
  EXPECT_WEFT_ERROR(read(ranks), Io, "rank-0.jsonl, line 4, is no record of a step; ");
}

}  // namespace
}  // namespace weft::train::proof
