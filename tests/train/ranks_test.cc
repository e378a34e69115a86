// Several recorders for one run.
#include "weft/train/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/data/dataloader.h"
#include "weft/data/distributed_sampler.h"
#include "weft/nn/module.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/train/event_files.h"
#include "weft/tests/train/small_data.h"
#include "weft/train/evaluate.h"
#include "weft/train/interrupt.h"
#include "weft/train/recorder.h"

namespace weft::train {
namespace {

using testing::Nothing;
using testing::Numbers;

/// Runs f as `size` threads that gather each other's texts.
void run(int size, const std::function<void(const Ranks&)>& f) {
  std::barrier barrier(size);
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      thread_state().rank = rank;
      f({rank, size, "test", [&, rank](const std::string& text) {
           texts[static_cast<std::size_t>(rank)] = text;
           barrier.arrive_and_wait();
           auto all = texts;
           barrier.arrive_and_wait();
           return all;
         }});
    });
  }
}

class RanksTest : public ::testing::Test {
 protected:
  Options options() const {
    Options o;
    o.example = "ranks";
    o.out = folder.path("out");
    o.batch_size = 4;
    o.epochs = 2;
    return o;
  }
  nlohmann::json metrics() const {
    return nlohmann::json::parse(testing::read_file(folder.path("out/metrics.json")));
  }
  testing::TempFolder folder;
};

TEST_F(RanksTest, SumsAreTheSameBitsOnAllRanks) {
  const double third = 1.0 / 3;
  std::vector<std::vector<double>> sums(3);
  run(3, [&](const Ranks& ranks) {
    sums[static_cast<std::size_t>(ranks.rank)] =
        ranks.sum({third * ranks.rank, static_cast<double>(ranks.rank)});
  });
  for (const auto& sum : sums) EXPECT_EQ(sum, (std::vector<double>{third + 2 * third, 3}));
  EXPECT_EQ(Ranks().sum({1, 2}), (std::vector<double>{1, 2}));
}

TEST_F(RanksTest, LossesAreMeansAndTheFirstRankWrites) {
  ::testing::internal::CaptureStderr();
  run(2, [&](const Ranks& ranks) {
    Options o = options();
    o.tensorboard = true;
    if (ranks.rank == 1) o.out = folder.path("nobody");
    Recorder recorder(o, ranks);
    data::DataLoader loader(Numbers(), {.batch_size = 4});
    while (recorder.next_epoch()) {
      for (auto& x : recorder.batches(loader)) {
        (void)x;
        recorder.step(
            {{"one", scalar(recorder.steps() + 10 * ranks.rank)}, {"two", scalar(ranks.rank)}});
      }
    }
    recorder.note({{"bytes_sent", 7}});
    const Scoped of_test(&ThreadState::memory_owner, MemoryOwner::gathered);
    const Tensor after_the_training = zeros({1000});
    recorder.finish(Nothing());
  });
  ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(std::filesystem::exists(folder.path("nobody")));
  const auto json = metrics();
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["backend"], "test");
  EXPECT_EQ(json["bytes_sent"], 7);
  ASSERT_EQ(json["memory"].size(), 2U);
  EXPECT_GT(json["memory"][1]["peak"], 0);
  EXPECT_EQ(json["memory"][1]["gathered_outputs"], 0);
  EXPECT_EQ(json["losses"]["one"], (std::vector<double>{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(json["losses"]["two"], std::vector<double>(6, 0.5));
  EXPECT_EQ(json["epochs"][1]["mean_loss"], 9);
  const auto told = testing::event_files::curves(folder.path("out/tensorboard")).at("loss/one");
  EXPECT_EQ(told, (testing::event_files::Curve{{0, 5}, {1, 6}, {2, 7}, {3, 8}, {4, 9}, {5, 10}}));
}

TEST_F(RanksTest, OneBarForAll) {
  ::testing::internal::CaptureStderr();
  run(3, [&](const Ranks& ranks) {
    Recorder recorder(options(), ranks);
    data::DataLoader loader(Numbers(), {.batch_size = 4});
    while (recorder.next_epoch()) {
      for (auto& x : recorder.batches(loader)) recorder.step(scalar(x.numel()));
    }
  });
  const std::string shown = ::testing::internal::GetCapturedStderr();
  const auto finished = [&](const std::string& line) {
    return shown.find(line) != std::string::npos && shown.find(line) == shown.rfind(line);  // once
  };
  EXPECT_TRUE(finished("epoch 0  3/3")) << shown;
  EXPECT_TRUE(finished("epoch 1  3/3")) << shown;
}

TEST_F(RanksTest, AnInterruptEndsAllAfterTheSameStep) {
  const InterruptScope scope;
  std::vector<std::int64_t> steps(2), seen(2);
  ::testing::internal::CaptureStderr();
  run(2, [&](const Ranks& ranks) {
    Options o = options();
    o.epochs = 1'000'000;
    Recorder recorder(o, ranks);
    data::DataLoader loader(Numbers(), {.batch_size = 4});
    const auto rank = static_cast<std::size_t>(ranks.rank);
    while (recorder.next_epoch()) {
      for (auto& x : recorder.batches(loader)) {
        recorder.step(scalar(x.numel()));
        if (ranks.rank == 1 && recorder.steps() == 5) std::raise(SIGINT);
        ++seen[rank];
      }
    }
    EXPECT_TRUE(recorder.interrupted());
    steps[rank] = recorder.steps();
  });
  ::testing::internal::GetCapturedStderr();
  EXPECT_GE(steps[0], 5);
  EXPECT_EQ(steps[0], steps[1]);
  EXPECT_EQ(seen, steps);
}

void span(const char* name) { const Span span("test", name); }

// Written at the end of a run, also an interrupted one, with times by one clock.
TEST_F(RanksTest, TheFirstRanksTraceHasTheSpansOfAll) {
  for (const bool interrupted : {false, true}) {
    const InterruptScope scope;
    ::testing::internal::CaptureStderr();
    run(3, [&](const Ranks& ranks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3 * ranks.rank));
      Tracer tracer;
      const Scoped traced(&ThreadState::tracer, &tracer);
      span("before");
      Options o = options();
      if (interrupted) o.epochs = 1'000'000;
      Recorder recorder(o, ranks);
      Nothing model;
      data::DataLoader loader(Numbers(), {.batch_size = 4});
      while (recorder.next_epoch()) {
        for (auto& x : recorder.batches(loader)) {
          recorder.step(scalar(x.numel()));
          if (interrupted && ranks.rank == 2 && recorder.steps() == 1) std::raise(SIGINT);
        }
        if (recorder.epoch() == 0) span("after");  // all ranks have been asked for their losses
        recorder.save(model, loader);
      }
      if (!recorder.interrupted()) recorder.finish(model);
      EXPECT_EQ(recorder.interrupted(), interrupted);
      if (ranks.rank == 0) tracer.write(folder.path("trace.json"));
    });
    ::testing::internal::GetCapturedStderr();
    const auto trace = nlohmann::json::parse(testing::read_file(folder.path("trace.json")));
    std::map<int, double> before, after;  // end of the one and begin of the other, by rank
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || event["cat"] != "test") continue;
      const double begin = event["ts"], end = begin + event["dur"].get<double>();
      const bool first = event["name"] == "before";
      EXPECT_TRUE((first ? before : after).try_emplace(event["pid"], first ? end : begin).second);
    }
    ASSERT_EQ(before.size(), 3U) << trace;
    ASSERT_EQ(after.size(), 3U) << trace;
    for (const auto& [rank, end] : before) {
      for (const auto& [other, begin] : after) EXPECT_LE(end, begin) << rank << ' ' << other;
    }
  }
}

// Each rank draws its own numbers, in the order of its loader.
TEST_F(RanksTest, ACheckpointHoldsTheStateOfEveryRank) {
  using Draws = std::vector<std::vector<double>>;
  const auto train = [&](const Options& o, int size, std::uint64_t seed) {
    Draws draws(static_cast<std::size_t>(size));
    ::testing::internal::CaptureStderr();
    run(size, [&](const Ranks& ranks) {
      manual_seed(seed + static_cast<std::uint64_t>(ranks.rank));
      Recorder recorder(o, ranks);
      Nothing model;
      data::DataLoader loader(Numbers(), {.batch_size = 4, .shuffle = true});
      recorder.resume(model, loader);
      auto& own = draws[static_cast<std::size_t>(ranks.rank)];
      while (recorder.next_epoch()) {
        for (auto& x : recorder.batches(loader)) {
          own.push_back(x.to_vector<double>()[0] + rand({}).item<double>());
          recorder.step(scalar(own.back()));
        }
        recorder.save(model, loader);
      }
      recorder.losses();
      recorder.finish(model);
    });
    ::testing::internal::GetCapturedStderr();
    return draws;
  };

  const Draws whole = train(options(), 2, 40);
  const auto losses = metrics()["losses"];
  Options first = options();
  first.limit_steps = 4;
  Draws both = train(first, 2, 40);
  Options second = options();
  second.resume = folder.path("out/checkpoint.safetensors");
  const Draws rest = train(second, 2, 90);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    both[rank].insert(both[rank].end(), rest[rank].begin(), rest[rank].end());
  }
  EXPECT_EQ(both, whole);
  EXPECT_EQ(metrics()["losses"], losses);
}

TEST_F(RanksTest, AnEntryThatAFileLacksIsNamed) {
  const std::string file = folder.path("out/checkpoint.safetensors");
  ::testing::internal::CaptureStderr();
  const auto resume = [&](bool saves) {
    std::vector<std::string> errors(2);
    run(2, [&](const Ranks& ranks) {
      Options o = options();
      if (!saves) o.resume = file;
      Recorder recorder(o, ranks);
      Nothing model;
      data::DataLoader loader(Numbers(), {.batch_size = 4});
      try {
        recorder.resume(model, loader);
        if (saves) recorder.save(model, loader);
      } catch (const std::exception& error) {
        const auto* const ours = dynamic_cast<const Error*>(&error);
        errors[static_cast<std::size_t>(ranks.rank)] =
            (ours ? std::string(to_string(ours->code())) : "?") + ": " + error.what();
      }
    });
    return errors;
  };
  EXPECT_EQ(resume(true), std::vector<std::string>(2));
  const Checkpoint whole = load_checkpoint(file);
  for (const std::string missing : {"rank1.loader", "rank1.generator", "epochs_begun",
                                    "epoch_complete", "epoch_first_step", "epoch_ms"}) {
    Checkpoint lacking = whole;
    ASSERT_EQ(lacking.notes.erase(missing), 1U);
    save_checkpoint(file, lacking);
    const std::vector<std::string> errors = resume(false);
    if (missing.starts_with("rank1")) {
      EXPECT_EQ(errors[0], "");
    } else {
      EXPECT_EQ(errors[0], errors[1]);
    }
    EXPECT_EQ(errors[1].find("Io: [checkpoint] " + file + ": the entry \"" + missing +
                             "\" is missing, so the run cannot be continued from this file"),
              0U)
        << errors[1];
  }
  ::testing::internal::GetCapturedStderr();
}

// Otherwise one rank would start again while the others continue.
TEST_F(RanksTest, AllFindTheLatestCheckpointOrNoneGoesOn) {
  run(1, [&](const Ranks& ranks) {
    data::DataLoader loader(Numbers(), {.batch_size = 4});
    Recorder(options(), ranks).save(Nothing(), loader);
  });
  std::vector<std::string> errors(2);
  run(2, [&](const Ranks& ranks) {
    Options o = options();
    o.resume = "latest";
    if (ranks.rank == 1) o.out = folder.path("elsewhere");
    Recorder recorder(o, ranks);
    Nothing model;
    data::DataLoader loader(Numbers(), {.batch_size = 4});
    try {
      recorder.resume(model, loader);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Io);
      errors[static_cast<std::size_t>(ranks.rank)] = error.what();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_HAS(error, "elsewhere/checkpoint.safetensors: rank 1 does not find it, rank 0");
  }
}

TEST_F(RanksTest, AnotherNumberOfRanksGoesOnBetweenEpochs) {
  const auto resume = [&](const Options& first, int size) {
    ::testing::internal::CaptureStderr();
    run(2, [&](const Ranks& ranks) {
      Recorder recorder(first, ranks);
      data::DataLoader loader(Numbers(), {.batch_size = 4});
      while (recorder.next_epoch()) {
        for (auto& x : recorder.batches(loader)) recorder.step(scalar(x.numel()));
        recorder.save(Nothing(), loader);
      }
    });
    std::vector<std::string> logs(static_cast<std::size_t>(size));
    run(size, [&](const Ranks& ranks) {
      Options o = options();
      o.resume = folder.path("out/checkpoint.safetensors");
      Recorder recorder(o, ranks);
      testing::CollectedLog log;
      Nothing model;
      data::DataLoader loader(Numbers(), {.batch_size = 4});
      try {
        recorder.resume(model, loader);
        EXPECT_EQ(recorder.steps(), 3);
      } catch (const Error& error) {
        log.text = error.what();
      }
      logs[static_cast<std::size_t>(ranks.rank)] = log.text;
    });
    ::testing::internal::GetCapturedStderr();
    for (const std::string& log : logs) EXPECT_EQ(log, logs[0]);
    return logs[0];
  };
  Options first = options();
  first.epochs = 1;
  const std::string end = resume(first, 3);
  EXPECT_HAS(end,
             "saved by a run of 2 ranks, this run has 3: from here on its random numbers are "
             "others, generator r of 3 from (seed 0, step 3, r)\n");
}

// Changes the number of ranks twice, and once only the batch size. Each sample of the epoch is seen
// once.
TEST_F(RanksTest, AnotherNumberOfRanksGoesOnWithinAnEpoch) {
  std::vector<std::int64_t> seen;
  std::mutex mutex;
  std::string log;
  const auto train = [&](int size, std::int64_t batch, std::int64_t limit) {
    std::vector<double> drawn(static_cast<std::size_t>(size));
    ::testing::internal::CaptureStderr();
    run(size, [&](const Ranks& ranks) {
      Options o = options();
      o.batch_size = batch;
      o.epochs = 1;
      o.seed = 3;
      o.limit_steps = limit;
      o.resume = "latest";
      const auto sampler = std::make_shared<data::DistributedSampler>(
          31, data::DistributedSamplerOptions{.num_replicas = size, .rank = ranks.rank});
      Recorder recorder(o, ranks);
      Nothing model;
      data::DataLoader loader(Numbers{31}, {.batch_size = batch, .sampler = sampler});
      testing::CollectedLog warnings;
      recorder.resume(model, loader);
      if (ranks.rank == 0) log = warnings.text;
      drawn[static_cast<std::size_t>(ranks.rank)] = rand({}).item<double>();
      while (recorder.next_epoch()) {
        for (auto& x : recorder.batches(loader)) {
          const auto samples = x.to_vector<std::int64_t>();
          {
            const std::lock_guard lock(mutex);
            seen.insert(seen.end(), samples.begin(), samples.end());
          }
          recorder.step(scalar(1));
        }
        recorder.save(model, loader);
        if (!limit) recorder.finish(model);
        break;
      }
    });
    ::testing::internal::GetCapturedStderr();
    return drawn;
  };
  train(4, 2, 1);
  const auto of_two = train(2, 2, 3);
  EXPECT_HAS(log,
             "generator r of 2 from (seed 3, step 1, r); the rest of the epoch is dealt out anew, "
             "with 4 samples in a step in place of 8\n");
  EXPECT_NE(of_two[0], of_two[1]);
  train(2, 3, 4);
  EXPECT_HAS(log,
             "run of 2 ranks, this run has 2; the rest of the epoch is dealt out anew, with 6 ");
  const auto of_three = train(3, 1, 5), again = train(3, 1, 6);
  EXPECT_EQ(log.find("warning"), std::string::npos) << log;
  EXPECT_NE(of_three[0], of_two[0]);
  train(3, 1, 0);
  EXPECT_EQ(metrics()["losses"].size(), 7U);  // samples left: 31, 23, 19, 15, 9, 6, 3, 0
  EXPECT_EQ(metrics()["epochs"].size(), 1U);
  std::ranges::sort(seen);
  std::vector<std::int64_t> all(31);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

// The number of ranks stays, but more or fewer of them share a batch. Those that share one draw the
// same numbers.
TEST_F(RanksTest, AnotherLayoutOfAsManyRanksGoesOn) {
  const std::string file = folder.path("out/checkpoint.safetensors");
  using Draws = std::vector<double>;
  // Each rank draws one more number when it goes on, or the run is refused.
  const auto train = [&](int batches, std::int64_t steps, bool goes_on) {
    std::vector<Draws> draws(4);
    std::string refused;
    ::testing::internal::CaptureStderr();
    run(4, [&](const Ranks& of_all) {
      Ranks ranks = of_all;
      ranks.batches = batches;
      Options o = options();
      o.batch_size = 8 / batches;
      o.limit_steps = steps;
      if (goes_on) o.resume = file;
      const int share = ranks.rank / (4 / batches);
      manual_seed(static_cast<std::uint64_t>(goes_on ? 9 : share));
      Recorder recorder(o, ranks);
      Nothing model;
      const auto sampler = std::make_shared<data::DistributedSampler>(
          16, data::DistributedSamplerOptions{.num_replicas = batches, .rank = share});
      data::DataLoader loader(Numbers{16}, {.batch_size = o.batch_size, .sampler = sampler});
      try {
        recorder.resume(model, loader);
      } catch (const Error& error) {
        if (ranks.rank == 3) refused = error.what();
        return;
      }
      Draws& own = draws[static_cast<std::size_t>(ranks.rank)];
      own.push_back(rand({}).item<double>());
      while (recorder.next_epoch()) {
        for (auto& x : recorder.batches(loader)) {
          own.push_back(static_cast<double>(x.numel()));
          recorder.step(scalar(1));
        }
        recorder.save(model, loader);
        break;
      }
    });
    ::testing::internal::GetCapturedStderr();
    return std::pair{draws, refused};
  };
  for (const std::int64_t steps : {2, 1}) {  // an epoch, or half of it
    train(2, steps == 2 ? 0 : steps, false);
    const Checkpoint saved = load_checkpoint(file);
    std::vector<double> next;  // of both shares
    for (const std::string& state : {saved.generator, saved.notes.at("rank2.generator")}) {
      default_generators().set_state(state);
      next.push_back(rand({}).item<double>());
    }
    EXPECT_NE(next[0], next[1]);
    for (const int batches : {1, 2, 4}) {
      save_checkpoint(file, saved);
      const auto [draws, refused] = train(batches, steps + 1, true);
      ASSERT_EQ(refused, "") << batches;
      std::set<double> firsts;
      for (std::size_t rank = 0; rank < 4; ++rank) {
        ASSERT_EQ(draws[rank].size(), 2U);
        EXPECT_EQ(draws[rank][1], 8.0 / batches);
        firsts.insert(draws[rank][0]);
        EXPECT_EQ(draws[rank][0], draws[rank / (4U / batches) * (4U / batches)][0]);
        if (batches == 2) {
          EXPECT_EQ(draws[rank][0], next[rank / 2]);
        }
      }
      EXPECT_EQ(firsts.size(), static_cast<std::size_t>(batches));
      EXPECT_EQ(firsts.contains(next[0]) || firsts.contains(next[1]), batches == 2);
    }
    // Older files do not say it.
    Checkpoint old = saved;
    old.notes.erase("batches_per_step");
    old.notes.erase("samples_per_step");
    const std::regex format(
        "^weft.dataloader.3 (\\S+ \\S+ \\S+ \\S+ \\S+ \\S+ \\S+) \\S+ \\S+ \\S+");
    const auto as_before = [&](std::string& loader) {
      ASSERT_TRUE(std::regex_search(loader, format));
      loader = std::regex_replace(loader, format, "weft.dataloader.2 $1");
    };
    as_before(old.loader);
    for (const char* rank : {"rank1", "rank2", "rank3"}) {
      as_before(old.notes.at(rank + std::string(".loader")));
    }
    save_checkpoint(file, old);
    EXPECT_EQ(train(2, steps + 1, true).second, "");
    save_checkpoint(file, old);
    const std::string refused = train(1, steps + 1, true).second;
    if (steps == 2) {
      EXPECT_EQ(refused, "");
    } else {
      EXPECT_HAS(refused,
                 "the state does not say which samples of a common order are done; resume "
                 "with as many ranks and the same batch size, or from the end of an ");
    }
  }
}

TEST_F(RanksTest, RanksThatReadOtherCheckpointsAreAnError) {
  for (const std::string out : {"0", "1"}) {
    Options o = options();
    o.out = folder.path(out);
    o.seed = 5;
    Recorder recorder(o);
    data::DataLoader loader(Numbers(), {.batch_size = 4});
    if (out == "1") (void)rand({});
    recorder.save(Nothing(), loader);
  }
  std::atomic<int> refused = 0;
  run(2, [&](const Ranks& ranks) {
    Options o = options();
    o.resume = folder.path(std::to_string(ranks.rank) + "/checkpoint.safetensors");
    Recorder recorder(o, ranks);
    Nothing model;
    data::DataLoader loader(Numbers(), {.batch_size = 4});
    EXPECT_WEFT_ERROR(recorder.resume(model, loader), Io, "rank 1 reads another checkpoint (0 ");
    ++refused;
  });
  EXPECT_EQ(refused, 2);
}

struct Labelled {
  struct Batch {
    Tensor x, label;
    auto tensors() { return std::tie(x, label); }
  };
  std::int64_t size() const { return 11; }
  // Class 1 has the highest logit; it is the label of all samples except every third.
  Batch get_batch(std::span<const std::int64_t> indices) const {
    std::vector<std::int64_t> labels;
    for (const std::int64_t i : indices) labels.push_back(i % 3 == 0 ? 0 : 1);
    const auto n = static_cast<std::int64_t>(indices.size());
    return {raw::cat(std::vector<Tensor>{zeros({n, 1}), ones({n, 1})}, 1),
            from_span(std::span<const std::int64_t>(labels), {n})};
  }
};

// A model that counts its samples and returns them.
struct Identity : nn::Module<Identity> {
  explicit Identity(std::function<void(const Tensor&)> f) : look(std::move(f)) {}
  std::function<void(const Tensor&)> look;
  Tensor operator()(const Tensor& x) const {
    look(x);
    return x;
  }
};

TEST_F(RanksTest, EverySampleOfATestCountsOnce) {
  for (const int size : {1, 2, 3, 7}) {
    std::atomic<std::int64_t> samples = 0;
    run(size, [&](const Ranks& ranks) {
      Identity model([&](const Tensor& x) { samples += x.shape(0); });
      data::DataLoader loader(Labelled(), {.batch_size = 2});
      EXPECT_EQ(accuracy(model, loader, ranks), 7.0 / 11) << size << " ranks";
    });
    EXPECT_EQ(samples, 11) << size << " ranks";
  }
}

// The timeout of the others' operations is shorter than the time that rank 0 needs to write and to
// evaluate.
TEST_F(RanksTest, RanksThatSaveOrEvaluateAreWaitedFor) {
  constexpr std::chrono::milliseconds timeout{500};
  const auto be_slow = [&] {
    if (thread_state().rank == 0) std::this_thread::sleep_for(3 * timeout);
  };
  struct Slow : Nothing {
    std::function<void()> be_slow;
    io::NamedTensors state_dict() const {
      be_slow();
      return {};
    }
  };
  ::testing::internal::CaptureStderr();
  comm::run_ranks(2,
                  [&](comm::ProcessGroup& group) {
                    const Ranks ranks{
                        group.rank(), group.size(), group.backend(),
                        [&](const std::string& text) { return group.all_gather_object(text); }};
                    Options o = options();
                    o.epochs = 1;
                    Recorder recorder(o, ranks);
                    data::DataLoader loader(Numbers(), {.batch_size = 4});
                    data::DataLoader test(Labelled(), {.batch_size = 6});
                    while (recorder.next_epoch()) {
                      for (auto& x : recorder.batches(loader)) recorder.step(scalar(x.numel()));
                      recorder.save(Slow({}, be_slow), loader);
                    }
                    Identity model([&](const Tensor&) { be_slow(); });
                    recorder.finish(Nothing(), "accuracy", accuracy(model, test, ranks));
                  },
                  {.timeout = timeout});
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(metrics()["losses"].size(), 3u);
}

}  // namespace
}  // namespace weft::train
