#include "weft/data/dataloader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/data/numbers.h"

namespace weft::data {
namespace {

using Batches = std::vector<std::vector<std::int64_t>>;

// The data are the indices themselves.
struct Numbers {
  std::int64_t count = 10;
  std::int64_t size() const { return count; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    return from_span(indices, {static_cast<std::int64_t>(indices.size())});
  }
};

template <class Loader>
Batches epoch(Loader& loader) {
  Batches batches;
  for (auto& batch : loader) batches.push_back(batch.template to_vector<std::int64_t>());
  return batches;
}

TEST(DataLoader, OrderIsPyTorchsForAnyNumberOfWorkers) {
  const auto cases = nlohmann::json::parse(std::ifstream("tests/data/goldens/loader_orders.json"));
  ASSERT_EQ(cases.size(), 16u);
  for (const auto& item : cases) {
    for (const int workers : {0, 1, 2, 4}) {
      SCOPED_TRACE(item.dump().substr(0, 80) + " workers " + std::to_string(workers));
      manual_seed(item["seed"]);
      DataLoader loader(Numbers{item["size"]}, {.batch_size = item["batch_size"],
                                                .shuffle = item["shuffle"],
                                                .workers = workers,
                                                .drop_last = item["drop_last"]});
      for (const auto& expected : item["epochs"]) {
        EXPECT_EQ(loader.size(), static_cast<std::int64_t>(expected.size()));
        EXPECT_EQ(epoch(loader), expected.get<Batches>());
      }
      EXPECT_EQ(draw_int64(default_generator()), item["next"].get<std::uint64_t>());
    }
  }
}

TEST(DataLoader, NotInsideACapturedStep) {
  DataLoader loader(Numbers{}, {.batch_size = 4, .workers = 2});
  graph::Step step = graph::capture([&] { epoch(loader); });
  step();
  EXPECT_WEFT_ERROR(step(), Unsupported, "[dataloader] cannot be captured");
  EXPECT_EQ(epoch(loader).size(), 3u);
}

TEST(DataLoader, TakesASampler) {
  class Backwards final : public Sampler {
   public:
    std::int64_t size() const override { return 4; }
    std::string draw_seed(Generator&) const override { return ""; }
    void order(const std::string&, std::vector<std::int64_t>& order) const override {
      order = {9, 7, 5, 3};
    }
  };
  DataLoader loader(Numbers{}, {.batch_size = 3, .sampler = std::make_shared<Backwards>()});
  EXPECT_EQ(epoch(loader), (Batches{{9, 7, 5}, {3}}));
  DataLoader small(Numbers{9}, {.sampler = std::make_shared<Backwards>()});
  EXPECT_WEFT_ERROR(epoch(small), InvalidArgument, "the sampler gave index 9, the data set has 9");
  EXPECT_WEFT_ERROR(
      DataLoader(Numbers{}, {.shuffle = true, .sampler = std::make_shared<Backwards>()}),
      InvalidArgument, "leave shuffle off beside it");
}

// Gives one batch more in each epoch.
class GrowingBatches final : public BatchSampler {
 public:
  explicit GrowingBatches(Batches batches) : batches_(std::move(batches)) {}
  std::int64_t size() const override { return std::min<std::int64_t>(next_, std::ssize(batches_)); }
  Batches batches(Generator&) const override {
    const std::int64_t count = size();
    ++next_;
    return {batches_.begin(), batches_.begin() + count};
  }

 private:
  const Batches batches_;
  mutable std::int64_t next_ = 1;
};

TEST(DataLoader, TakesABatchSampler) {
  const Batches all = {{9, 7, 5}, {3}, {3, 3, 0, 1}};
  for (const int workers : {0, 2}) {
    for (const bool resident : {false, true}) {
      SCOPED_TRACE(std::to_string(workers) + (resident ? " resident" : ""));
      DataLoader loader(Numbers{}, {.workers = workers,
                                    .batch_sampler = std::make_shared<GrowingBatches>(all),
                                    .device_resident = resident});
      for (std::int64_t count = 1; count <= 3; ++count) {
        EXPECT_EQ(loader.size(), count);
        Batches batches;
        for (auto& batch : loader) {
          EXPECT_EQ(loader.size(), count);
          batches.push_back(batch.to_vector<std::int64_t>());
          const auto indices = loader.indices();  // not those of a batch that is fetched ahead
          EXPECT_EQ(batches.back(), std::vector(indices.begin(), indices.end()));
        }
        EXPECT_EQ(batches, Batches(all.begin(), all.begin() + count));
      }
      // Left early, the next epoch is a new one.
      for (auto& batch : loader) {
        EXPECT_EQ(batch.numel(), 3);
        break;
      }
      EXPECT_EQ(epoch(loader), all);
      EXPECT_WEFT_ERROR(loader.state(), Unsupported, "a loader with a batch sampler has no state");
      EXPECT_WEFT_ERROR(loader.set_state("x"), Unsupported, "has no state");
      EXPECT_WEFT_ERROR(loader.set_state_of_other_ranks({"x"}), Unsupported, "has no state");
    }
  }
  DataLoader none(Numbers{}, {.batch_sampler = std::make_shared<GrowingBatches>(Batches())});
  EXPECT_EQ(epoch(none), Batches());
}

TEST(DataLoader, RefusesBadBatchSamplers) {
  const auto of = [](const Batches& batches) { return std::make_shared<GrowingBatches>(batches); };
  DataLoader outside(Numbers{9}, {.batch_sampler = of({{9}})});
  EXPECT_WEFT_ERROR(epoch(outside), InvalidArgument, "gave index 9, the data set has 9");
  DataLoader empty(Numbers{}, {.batch_sampler = of({{}})});
  EXPECT_WEFT_ERROR(epoch(empty), InvalidArgument, "batch 0 of the batch sampler has no indices");
  const auto sampler = std::make_shared<SequentialSampler>(10);
  for (const DataLoaderOptions& beside :
       {DataLoaderOptions{.batch_size = 2, .batch_sampler = of({})},
        DataLoaderOptions{.shuffle = true, .batch_sampler = of({})},
        DataLoaderOptions{.drop_last = true, .batch_sampler = of({})},
        DataLoaderOptions{.sampler = sampler, .batch_sampler = of({})}}) {
    EXPECT_WEFT_ERROR(DataLoader(Numbers{}, beside), InvalidArgument,
                      "leave batch_size, shuffle, sampler and drop_last out beside it");
  }
}

TEST(DataLoader, IndicesAreThoseOfTheBatchHandedOut) {
  for (const int workers : {0, 3}) {
    DataLoader loader(Numbers{11}, {.batch_size = 3, .shuffle = true, .workers = workers});
    for (int e = 0; e < 2; ++e) {
      for (auto& batch : loader) {
        const auto indices = loader.indices();
        EXPECT_EQ(batch.to_vector<std::int64_t>(), std::vector(indices.begin(), indices.end()));
      }
    }
  }
}

TEST(DataLoader, IndicesOutsideOfALoopAreRefused) {
  DataLoader loader(Numbers{3}, {.batch_size = 2});
  const auto refused = [&] {
    EXPECT_WEFT_ERROR(loader.indices(), InvalidArgument, "no loop over this loader has one");
  };
  refused();
  for ([[maybe_unused]] auto& batch : loader) break;
  refused();
  EXPECT_EQ(epoch(loader).size(), 2U);
  refused();
}

TEST(DataLoader, RefusesBadOptions) {
  EXPECT_WEFT_ERROR(DataLoader(Numbers{}, {.batch_size = 0}), InvalidArgument,
                    "batch_size is 0, needs at least 1");
  EXPECT_WEFT_ERROR(DataLoader(Numbers{}, {.workers = -1}), InvalidArgument, "workers is -1");
  EXPECT_WEFT_ERROR(DataLoader(Numbers{}, {.prefetch = 0}), InvalidArgument, "prefetch is 0");
  EXPECT_WEFT_ERROR(DataLoader(Numbers{}, {.workers = 1025}), InvalidArgument,
                    "workers is 1025, needs 0 to 1024");
  EXPECT_WEFT_ERROR(DataLoader(Numbers{}, {.workers = 1, .prefetch = 1025}), InvalidArgument,
                    "prefetch is 1025, needs 1 to 1024");
  EXPECT_WEFT_ERROR(DataLoader(Numbers{}, {.device = "cuda:7"}), Device, "cuda:7");
}

TEST(DataLoader, AnEmptyDataSetHasNoBatches) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Numbers{0}, {.batch_size = 4, .shuffle = true, .workers = workers});
    EXPECT_EQ(loader.size(), 0);
    EXPECT_TRUE(epoch(loader).empty());
  }
}

TEST(DataLoader, CanBeMovedAndCopiesItsBatches) {
  DataLoader first(Numbers{}, {.batch_size = 4, .workers = 1});
  EXPECT_EQ(epoch(first).size(), 3u);
  DataLoader loader = std::move(first);
  std::vector<Tensor> kept;
  for (auto& batch : loader) kept.push_back(batch);
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(kept[2].to_vector<std::int64_t>(), (std::vector<std::int64_t>{8, 9}));
}

TEST(DataLoader, MovedFromIsAnError) {
  DataLoader first(Numbers{}, {.batch_size = 4});
  const std::string state = first.state();
  DataLoader loader = std::move(first);
  const char* const text = "[dataloader] this loader was moved from";
  EXPECT_WEFT_ERROR(first.begin(), InvalidArgument, text);
  EXPECT_WEFT_ERROR(first.size(), InvalidArgument, text);
  EXPECT_WEFT_ERROR(first.dataset(), InvalidArgument, text);
  EXPECT_WEFT_ERROR(first.options(), InvalidArgument, text);
  EXPECT_WEFT_ERROR(first.position(), InvalidArgument, text);
  EXPECT_WEFT_ERROR(first.state(), InvalidArgument, text);
  EXPECT_WEFT_ERROR(first.set_state(state), InvalidArgument, text);
  first = std::move(loader);
  EXPECT_EQ(epoch(first).size(), 3u);
}

TEST(DataLoader, ABatchTheUserKeepsIsNotWrittenOver) {
  for (const int workers : {0, 2}) {
    DataLoader loader(testing::Numbers(), {.batch_size = 4, .workers = workers});
    std::vector<Tensor> kept;
    for (auto& [x] : loader) {
      if (x.data<std::int64_t>()[0] % 8 == 0) kept.push_back(x);
    }
    ASSERT_EQ(kept.size(), 5u);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(kept[i].data<std::int64_t>()[0], static_cast<std::int64_t>(i) * 8);
    }
  }
}

TEST(DataLoader, MemoryOfBatchesGoesRound) {
  DataLoader loader(testing::Numbers(), {.batch_size = 4, .workers = 2});
  std::set<const void*> addresses;
  for (int i = 0; i < 3; ++i) {
    for (auto& [x] : loader) addresses.insert(x.raw_data());
  }
  EXPECT_LE(addresses.size(), 5u);  // workers x prefetch, and the one in use
}

// --- Errors and early ends -----------------------------------------------------------------------

struct Failing {
  std::int64_t bad = 0;
  std::atomic<int>* calls = nullptr;
  std::int64_t size() const { return 100; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    if (calls) ++*calls;
    for (const std::int64_t index : indices) {
      WEFT_CHECK(index < bad, Io, "failing", "image ", index, " cannot be read");
    }
    return from_span(indices, {static_cast<std::int64_t>(indices.size())});
  }
};

TEST(DataLoader, AWorkersErrorArrivesInItsPlaceAndOnce) {
  for (const int workers : {0, 1, 2, 4}) {
    DataLoader loader(Failing{50}, {.batch_size = 10, .workers = workers});
    for (int round = 0; round < 3; ++round) {  // the loader can be used again afterwards
      int batches = 0;
      const auto run = [&] {
        for (auto& batch : loader) {
          (void)batch;
          ++batches;
        }
      };
      // Of the failing batches 5 to 9 the first one's error is reported, no matter which failed
      // first.
      EXPECT_WEFT_ERROR(run(), Io, "image 50 cannot be read");
      EXPECT_EQ(batches, 5);
      EXPECT_EQ(loader.position(), 5);
    }
  }
}

TEST(DataLoader, AnErrorEndsTheEpochBeforeItsBatch) {
  std::set<std::string> states;
  for (const int workers : {0, 1, 4}) {
    manual_seed(7);
    DataLoader loader(Failing{50}, {.batch_size = 10, .workers = workers});
    auto it = loader.begin();
    for (int i = 1; i < 5; ++i) ++it;
    EXPECT_WEFT_ERROR(++it, Io, "image 50 cannot be read");
    ++it;
    EXPECT_TRUE(it == loader.end());
    states.insert(loader.state());

    DataLoader mended(Failing{100}, {.batch_size = 10, .workers = workers});
    mended.set_state(*states.begin());
    std::vector<std::int64_t> left;
    for (const Tensor& x : mended) left.push_back(x.data<std::int64_t>()[0]);
    EXPECT_EQ(left, (std::vector<std::int64_t>{50, 60, 70, 80, 90}));
  }
  EXPECT_EQ(states.size(), 1U);
}

TEST(DataLoader, AnErrorInTheFirstBatchLeavesTheLoaderUsable) {
  DataLoader loader(Failing{0}, {.batch_size = 10, .workers = 2});
  for (int i = 0; i < 3; ++i) EXPECT_WEFT_ERROR(loader.begin(), Io, "image 0 cannot be read");
}

TEST(DataLoader, OtherExceptionsPassThrough) {
  struct Throwing {
    std::int64_t size() const { return 4; }
    Tensor get_batch(std::span<const std::int64_t>) const { throw std::logic_error("odd"); }
  };
  DataLoader loader(Throwing{}, {.workers = 2});
  EXPECT_THROW(loader.begin(), std::logic_error);
}

// Every batch takes this long.
struct Slow {
  std::chrono::milliseconds pause;
  std::atomic<int>* calls;
  std::int64_t size() const { return 1000; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    ++*calls;
    std::this_thread::sleep_for(pause);
    return from_span(indices, {static_cast<std::int64_t>(indices.size())});
  }
};

TEST(DataLoader, LeavingTheLoopEndsTheWork) {
  std::atomic<int> calls = 0;
  const auto start = std::chrono::steady_clock::now();
  {
    DataLoader loader(Slow{std::chrono::milliseconds(20), &calls}, {.workers = 4, .prefetch = 50});
    for (auto& batch : loader) {
      (void)batch;
      break;
    }
    const int after = calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    EXPECT_EQ(calls, after) << "work goes on though nobody wants it";
    // And a second epoch starts at the beginning.
    auto it = loader.begin();
    EXPECT_EQ(it->item<std::int64_t>(), 0);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 2.0);
  EXPECT_LT(calls, 100);
}

TEST(DataLoader, ThrowingOutOfTheLoopEndsTheWork) {
  std::atomic<int> calls = 0;
  // With less to fetch ahead the workers would soon rest anyway.
  DataLoader loader(Slow{std::chrono::milliseconds(1), &calls}, {.workers = 2, .prefetch = 400});
  for (int i = 0; i < 5; ++i) {
    try {
      for (auto& batch : loader) {
        (void)batch;
        throw 1;
      }
    } catch (int) {
    }
    const int after = calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(calls, after) << "work goes on though nobody wants it";
  }
}

// All workers get here at the same time.
struct Exits {
  std::int64_t size() const { return 100; }
  Tensor get_batch(std::span<const std::int64_t>) const {
    static std::latch& all = *new std::latch(kWorkers);
    all.arrive_and_wait();
    std::exit(7);
  }
  static constexpr int kWorkers = 4;
};

// Two threads that destroy static objects at once sometimes crash; this always detects the second
// one.
void end_static_objects_in_one_thread() {
  for (int i = 0; i < 100; ++i) {
    std::atexit([] {
      static constinit std::atomic<pid_t> ending = 0;
      pid_t before = 0;
      if (!ending.compare_exchange_strong(before, gettid()) && before != gettid()) _exit(9);
      std::this_thread::yield();
    });
  }
}

TEST(DataLoaderDeathTest, SeveralWorkersMayCallExit) {
  const auto run = [] {
    end_static_objects_in_one_thread();
    DataLoader loader(Exits(), {.batch_size = 4, .workers = Exits::kWorkers});
    for (auto& batch : loader) (void)batch;
  };
  for (int i = 0; i < 20; ++i) EXPECT_EXIT(run(), ::testing::ExitedWithCode(7), "");
}

TEST(DataLoaderDeathTest, AWorkerThatCallsExitMayEndItsOwnLoader) {
  const auto run = [] {
    static DataLoader loader(Exits(), {.batch_size = 4, .workers = Exits::kWorkers});
    for (auto& batch : loader) (void)batch;
  };
  for (int i = 0; i < 20; ++i) EXPECT_EXIT(run(), ::testing::ExitedWithCode(7), "");
}

TEST(DataLoader, OneEpochAtATime) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Numbers{}, {.workers = workers});
    {
      auto it = loader.begin();
      EXPECT_WEFT_ERROR(loader.begin(), InvalidArgument, "an epoch of this loader is running");
      ++it;
      EXPECT_EQ(it->item<std::int64_t>(), 1);
    }
    EXPECT_EQ(epoch(loader).size(), 10u);
  }
}

// --- What workers inherit ------------------------------------------------------------------------

struct Spying {
  struct Seen {
    std::mutex mutex;
    std::vector<ThreadState> states;
    std::vector<int> threads;
  };
  Seen* seen;
  std::int64_t size() const { return 8; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    const std::lock_guard lock(seen->mutex);
    seen->states.push_back(thread_state());
    seen->threads.push_back(num_threads());
    return from_span(indices, {static_cast<std::int64_t>(indices.size())});
  }
};

TEST(DataLoader, WorkersTakeOverTheCallersState) {
  Tracer tracer;
  const Scoped rank(&ThreadState::rank, 3);
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Scoped<Tracer*> trace(&ThreadState::tracer, &tracer);
  std::int64_t counted = 0;
  const Scoped counting(&ThreadState::multiply_adds, &counted);
  const PathScope path("model");
  Spying::Seen seen;
  DataLoader loader(Spying{&seen}, {.workers = 2});
  epoch(loader);
  ASSERT_EQ(seen.states.size(), 8u);
  for (const ThreadState& state : seen.states) {
    EXPECT_EQ(state.rank, 3);
    EXPECT_TRUE(state.deterministic);
    EXPECT_FALSE(state.grad_enabled);
    EXPECT_EQ(state.tracer, &tracer);
    EXPECT_EQ(state.path, nullptr);
    EXPECT_EQ(state.multiply_adds, nullptr);
    EXPECT_NE(state.generators, thread_state().generators);
  }
  EXPECT_EQ(seen.threads, std::vector<int>(8, 1));
  EXPECT_TRUE(thread_state().grad_enabled);
}

// Adds noise, like a random transform.
struct Noisy {
  std::int64_t size() const { return 12; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    return rand({static_cast<std::int64_t>(indices.size())});
  }
};

TEST(DataLoader, RandomTransformsDoNotDependOnTheWorkers) {
  std::vector<std::vector<float>> first;
  for (const int workers : {0, 1, 2, 4}) {
    manual_seed(5);
    DataLoader loader(Noisy{}, {.batch_size = 2, .workers = workers});
    std::vector<std::vector<float>> values;
    for (int i = 0; i < 2; ++i) {
      for (auto& batch : loader) values.push_back(batch.to_vector<float>());
    }
    EXPECT_EQ(std::set(values.begin(), values.end()).size(), 12u);
    if (first.empty()) first = values;
    EXPECT_EQ(values, first);
  }
}

// --- Resuming ------------------------------------------------------------------------------------

TEST(DataLoader, StateGoesOnInTheMiddleOfAnEpoch) {
  const DataLoaderOptions options = {.batch_size = 3, .shuffle = true};
  const auto make = [&](int workers) {
    DataLoaderOptions o = options;
    o.workers = workers;
    return DataLoader(Numbers{20}, o);
  };
  manual_seed(3);
  DataLoader whole = make(0);
  const Batches first = epoch(whole), second = epoch(whole);
  for (const int workers : {0, 2}) {
    for (std::size_t stop = 1; stop <= first.size(); ++stop) {
      manual_seed(3);
      DataLoader loader = make(workers);
      std::string state, generator;
      std::size_t seen = 0;
      for (auto& batch : loader) {
        (void)batch;
        if (++seen < stop) continue;
        state = loader.state();
        generator = default_generator().state();
        EXPECT_EQ(loader.position(), static_cast<std::int64_t>(stop));
        break;
      }
      EXPECT_EQ(loader.state(), state) << "a loop that was left is still in the middle";
      DataLoader other = make(2 - workers);
      manual_seed(99);
      other.set_state(state);
      default_generator().set_state(generator);
      EXPECT_EQ(other.state(), state);
      EXPECT_EQ(other.position(), static_cast<std::int64_t>(stop));
      EXPECT_EQ(epoch(other),
                Batches(first.begin() + static_cast<std::ptrdiff_t>(stop), first.end()));
      EXPECT_EQ(epoch(other), second);
    }
  }
}

TEST(DataLoader, StateBetweenEpochs) {
  manual_seed(3);
  DataLoader loader(Numbers{}, {.shuffle = true});
  epoch(loader);
  const std::string state = loader.state(), generator = default_generator().state();
  EXPECT_EQ(loader.position(), 0);
  const Batches second = epoch(loader);
  DataLoader other(Numbers{}, {.shuffle = true});
  other.set_state(state);
  default_generator().set_state(generator);
  EXPECT_EQ(epoch(other), second);
}

TEST(DataLoader, ABeginThatFailsKeepsTheStateToGoOnFrom) {
  struct FailingSampler final : Sampler {
    std::int64_t size() const override { return 4; }
    std::string draw_seed(Generator&) const override { return ""; }
    void order(const std::string&, std::vector<std::int64_t>& order) const override {
      if (fails) WEFT_THROW(OutOfMemory, "sampler", "no memory");
      order = {0, 1, 2, 3};
    }
    bool fails = false;
  };
  const auto sampler = std::make_shared<FailingSampler>();
  DataLoader loader(Numbers{4}, {.sampler = sampler});
  loader.begin();
  const std::string state = loader.state();
  loader.set_state(state);
  sampler->fails = true;
  EXPECT_WEFT_ERROR(loader.begin(), OutOfMemory, "no memory");
  EXPECT_EQ(loader.state(), state);
  sampler->fails = false;
  EXPECT_EQ(epoch(loader), (Batches{{1}, {2}, {3}}));
}

TEST(DataLoader, RefusesAStateThatDoesNotFit) {
  DataLoader loader(Numbers{}, {.batch_size = 2, .shuffle = true});
  const std::string state = loader.state();
  const auto refuses = [&](auto make, const char* message) {
    EXPECT_WEFT_ERROR(make.set_state(state), InvalidArgument, message);
  };
  refuses(DataLoader(Numbers{11}, {.batch_size = 2, .shuffle = true}), "of a data set of 10");
  refuses(DataLoader(Numbers{}, {.batch_size = 3, .shuffle = true}),
          "is of batch size 2, this loader's is 3");
  refuses(DataLoader(Numbers{}, {.batch_size = 2}), "with shuffle on, here it is off");
  for (const char* text :
       {"", "x", "weft.dataloader.1 10 10 2 1 0 0 0", "weft.dataloader.2 10 10 2 1 0 0",
        "weft.dataloader.3 10 10 2 1 0 0 0", "weft.dataloader.3 10 10 2 1 1 0 1 2 0 2 0",
        "weft.dataloader.3 10 10 2 1 1 0 1 0 -1 2 0", "weft.dataloader.3 10 10 2 1 1 0 1 0 0 -2 0",
        "weft.dataloader.3 10 10 2 1 1 0 9223372036854775807 0 0 -1 0",
        "weft.dataloader.2 10 10 2 1 0 0 0 0", "weft.dataloader.2 10 10 2 1 1 0 -1 0",
        "weft.dataloader.2 10 10 2 1 1 0 0 0\n", "weft.dataloader.2 10 10 2 1 1 0 0\t0"}) {
    EXPECT_WEFT_ERROR(loader.set_state(text), InvalidArgument, "not a loader's state");
  }
  EXPECT_WEFT_ERROR(loader.set_state("weft.dataloader.2 10 10 2 1 1 0 6 0"), InvalidArgument,
                    "after batch 6, an epoch has 5");
  EXPECT_WEFT_ERROR(loader.set_state("weft.dataloader.3 10 10 2 1 1 0 6 2 7 9 0"), InvalidArgument,
                    "after batch 6, an epoch has 4");
  EXPECT_WEFT_ERROR(loader.set_state("weft.dataloader.2 10 10 2 1 1 0 0 x"), InvalidArgument,
                    "[sampler] \"x\" is no seed of an order");
  EXPECT_EQ(loader.state(), state);
}

}  // namespace
}  // namespace weft::data
