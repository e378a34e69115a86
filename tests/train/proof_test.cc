// Records of several ranks and their replay in one process.
#include "weft/train/proof.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/comm/group/process_group.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/data/dataloader.h"
#include "weft/data/distributed_sampler.h"
#include "weft/data/tensor_dataset.h"
#include "weft/io/safetensors.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/dropout.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/train/records.h"
#include "weft/train/digest.h"
#include "weft/train/recorder.h"
#include "weft/train/step.h"

namespace weft::train {
namespace {

// --- Digests -------------------------------------------------------------------------------------

TEST(DigestTest, TellsWhatIsInATensor) {
  const Digest d = digest(from_vector(std::vector<float>{3, -4, 0, 0}, {2, 2}));
  EXPECT_EQ(d.sum, -1);
  EXPECT_EQ(d.l2, 5);
  EXPECT_EQ(d.max, 4);
  EXPECT_EQ(d.not_finite, 0U);
  for (const double sum : d.signs) EXPECT_TRUE(std::abs(sum) == 1 || std::abs(sum) == 7) << sum;

  const Digest none = digest(zeros({0, 3}));
  EXPECT_EQ(none.l2, 0);
  EXPECT_NE(none.hash, d.hash);
}

// The sums are of the finite elements, at their places; the others have a hash.
TEST(DigestTest, TellsWhatIsNotFinite) {
  const auto of = [](std::vector<double> x) {
    return digest(from_vector(x, {static_cast<std::int64_t>(x.size())}));
  };
  const Digest bad = of({1, NAN, 2}), zero = of({1, 0, 2});
  EXPECT_TRUE(std::isnan(bad.max));
  EXPECT_EQ(bad.signs, zero.signs);
  EXPECT_EQ(bad.l2, zero.l2);
  EXPECT_EQ(bad.not_finite, of({3, NAN, 5}).not_finite);
  EXPECT_EQ(of({INFINITY}).max, INFINITY);
  for (const auto& other :
       {zero, of({NAN, 1, 2}), of({1, INFINITY, 2}), of({1, -INFINITY, 2}), of({1, NAN, NAN})}) {
    EXPECT_NE(bad.not_finite, other.not_finite);
  }
}

TEST(DigestTest, HashIsOfTheElementsInLogicalOrder) {
  const Tensor x = arange(0, 6, 1).reshape({2, 3}), y = x.t();
  EXPECT_EQ(hash_of(y), hash_of(raw::contiguous(y)));
  EXPECT_NE(hash_of(y), hash_of(x));
  EXPECT_EQ(hash_of(x), hash_of(x.flatten()));
  EXPECT_NE(hash_of(x), hash_of(x.to(DType::f64)));
  EXPECT_NE(hash_of(zeros({3})), hash_of(zeros({4})));
  EXPECT_EQ(hash_of(zeros({1})), hash_of(raw::neg(zeros({1}))));
}

// Four sums estimate the square with a relative standard deviation of sqrt(2/4). Fixed numbers: the
// estimate is the same everywhere.
TEST(DigestTest, SignsTellHowFarTwoTensorsAreApart) {
  manual_seed(3);
  const Tensor x = randn({10000}), change = raw::mul(randn({10000}), 1e-3);
  const Digest a = digest(x), b = digest(raw::add(x, change));
  double squares = 0;
  for (std::size_t i = 0; i < 4; ++i) squares += std::pow(a.signs[i] - b.signs[i], 2) / 4;
  const double distance = digest(change).l2;
  EXPECT_GT(std::sqrt(squares), distance / 4);
  EXPECT_LT(std::sqrt(squares), distance * 4);
}

// --- Steps ---------------------------------------------------------------------------------------

/// Two nets with everything that makes a replay difficult: buffers, random numbers, a net that is
/// trained through the other, an output from after the last update.
struct Pair : nn::Module<Pair> {
  nn::Linear first = child("first", nn::Linear(4, 6));
  nn::BatchNorm2d norm = child("norm", nn::BatchNorm2d(6));
  nn::Dropout dropout = child("dropout", nn::Dropout(0.25));
  nn::Linear second = child("second", nn::Linear(6, 3));

  Tensor hidden(const Tensor& x) {
    const Tensor h = first(x).reshape({-1, 6, 1, 1});
    return dropout(relu(norm(h)).flatten(1));
  }
};

struct Way {
  bool two_optimizers = false;
  bool clip = false;
  bool look_after = false;  // call a module after the last update
  bool noise = false;       // an input that is not the loader's
};

/// An engine of ranks that keep their own buffers.
struct OwnBuffers {
  io::NamedTensors engine_state() const { return {}; }
  void load_engine_state(const io::NamedTensors&) {}
  bool broadcasts_buffers() const { return false; }
};

class ProofTest : public ::testing::Test {
 protected:
  Options options(const std::string& plan) const {
    Options o;
    o.example = "pair";
    o.out = folder.path("out");
    o.batch_size = 2;
    o.epochs = 2;
    o.workers = 1;
    testing::write_file(folder.path("plan"), plan);
    o.findings->proof = std::make_shared<Proof>(read_plan(folder.path("plan")));
    return o;
  }
  Options of_ranks(const std::string& more = "") const {
    return options(R"({"out": ")" + folder.path("ranks") + R"(", "side": "ranks")" + more + "}");
  }
  Options of_one(const std::string& more = "") const {
    return options(R"({"out": ")" + folder.path("one") + R"(", "side": "one", "from": ")" +
                   folder.path("ranks") + "\"" + more + "}");
  }

  /// average(params): makes the gradients those of all ranks.
  static void train(const Options& options, const Ranks& ranks, const Way& way,
                    const std::function<void(const std::vector<Tensor>&)>& average) {
    manual_seed(7);
    const data::TensorDataset set(randn({12, 4}),
                                  arange(0, 12, 1).to(DType::i64).remainder(3).to(DType::i64));
    Pair net;
    manual_seed(8 + static_cast<std::uint64_t>(ranks.rank));
    optim::SGD sgd(net.second.parameters(), {.lr = 0.1, .momentum = 0.9});
    std::vector<Tensor> rest = net.first.parameters();
    for (const Tensor& p : net.norm.parameters()) rest.push_back(p);
    optim::Adam adam(rest, {.lr = 0.01});
    const auto sampler = std::make_shared<data::DistributedSampler>(
        set.size(),
        data::DistributedSamplerOptions{.num_replicas = ranks.size, .rank = ranks.rank});
    data::DataLoader loader(set, options.loader(sampler));
    Step step(options, [&](const Tensor& x, const Tensor& label, const Tensor& noise) {
      sgd.zero_grad();
      adam.zero_grad();
      const Tensor h = net.hidden(x + noise);
      Tensor loss = nn::cross_entropy(net.second(h.detach()), label);
      if (way.two_optimizers) {
        loss.backward();
        average(sgd.parameters());
        if (way.clip) optim::clip_grad_norm(sgd.parameters(), 0.01);
        sgd.step();
        // Uses the new weights of `second`, and what the old ones of `first` have computed.
        loss = loss.detach() + nn::cross_entropy(net.second(h), label);
        loss.backward();
        average(adam.parameters());
        adam.step();
      } else {
        loss = nn::cross_entropy(net.second(h), label);
        loss.backward();
        average(adam.parameters());
        if (way.clip) optim::clip_grad_norm(adam.parameters(), 0.01);
        adam.step();
      }
      return std::pair(loss, way.look_after ? net.second(h.detach()).sum() : loss);
    });

    Recorder recorder(options, ranks);
    OwnBuffers engine;
    recorder.resume(net, loader, sgd, adam, engine);
    while (recorder.next_epoch()) {
      sampler->set_epoch(recorder.epoch());
      for (auto& [x, label] : recorder.batches(loader)) {
        // Each rank draws the noise of all ranks and takes its own part.
        const std::int64_t rows = x.shape(0);
        const Tensor all = randn({ranks.size * rows, 4});
        const auto [loss, other] =
            step(x, label, way.noise ? all.narrow(0, ranks.rank * rows, rows) : zeros({rows, 4}));
        recorder.step({{"one", loss}, {"other", other}});
      }
      recorder.save(net, loader, sgd, adam, engine);
    }
    recorder.finish(net);
  }

  void record(int n, const Way& way, const std::string& more = "") const {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      Options own = of_ranks_locked(more);
      const Ranks ranks{
          .rank = group.rank(),
          .size = n,
          .backend = "threads",
          .gather = [&](const std::string& text) { return group.all_gather_object(text); }};
      train(own, ranks, way, [&](const std::vector<Tensor>& params) {
        for (const Tensor& p : params) {
          if (!p.grad().defined()) continue;
          raw::mul_(p.grad(), 1.0 / n);
          group.all_reduce(p.grad()).wait();
        }
      });
    });
  }
  void replay(const Way& way, const std::string& more = "") const {
    train(of_one(more), {}, way, [](const std::vector<Tensor>&) {});
  }

  /// The number of digests, all equal.
  int expect_same(int n) const {
    int count = 0;
    for (int rank = 0; rank < n; ++rank) {
      for (const auto& [kind, each] : testing::expect_same_records(
               folder.path("ranks"), folder.path("one"), rank,
               {"output", "gradient", "weight", "loss", "update", "buffer"})) {
        count += each;
      }
    }
    return count;
  }

  testing::TempFolder folder;

 private:
  Options of_ranks_locked(const std::string& more) const {
    const std::lock_guard lock(mutex_);
    return of_ranks(more);
  }
  mutable std::mutex mutex_;
};

// In f32, and equal to the bit.
TEST_F(ProofTest, OneProcessTakesTheStepsOfTwoRanks) {
  record(2, {});
  replay({});
  // 6 samples each: 3 steps an epoch. A step has 5 outputs, 4 gradients, 6 weights and 3 buffers.
  EXPECT_EQ(expect_same(2), 2 * 6 * (5 + 4 + 6 + 3));
}

TEST_F(ProofTest, TwoOptimizersAndWhatComesAfterThem) {
  const Way way{.two_optimizers = true, .clip = true, .look_after = true, .noise = true};
  record(2, way);
  replay(way);
  EXPECT_GT(expect_same(2), 0);
}

TEST_F(ProofTest, ClippedAreTheGradientsOfAllRanks) {
  record(2, {.clip = true});
  replay({.clip = true});
  EXPECT_GT(expect_same(2), 0);
}

// The threads add in the order of the ranks, too.
TEST_F(ProofTest, ThreeRanksAndOne) {
  for (const int n : {1, 3}) {
    record(n, {.two_optimizers = true, .noise = true});
    replay({.two_optimizers = true, .noise = true});
    EXPECT_GT(expect_same(n), 0);
  }
}

// A small net. `set` gives the loader's batches, and the body of train() runs for each of them;
// tests make either of them wrong.
struct Small {
  nn::Linear net = nn::Linear(4, 3);
  optim::SGD sgd = optim::SGD(net.parameters(), {.lr = 0.1});
  data::TensorDataset<1> set;

  explicit Small(const Tensor& x) : set(x) {}
  Tensor update(const Tensor& x) {
    sgd.zero_grad();
    const Tensor loss = net(x).square().mean();
    loss.backward();
    sgd.step();
    return loss;
  }
  /// body(small, x) is a train::Step or, without as_step, runs directly.
  void train(const Options& options, const std::function<Tensor(Small&, const Tensor&)>& body,
             bool as_step = true, const std::function<void(Small&)>& after = {}) {
    data::DataLoader loader(set, options.loader());
    Step step(options, [&](const Tensor& x) { return body(*this, x); });
    Recorder recorder(options);
    recorder.resume(net, loader, sgd);
    while (recorder.next_epoch()) {
      for (auto& [x] : recorder.batches(loader)) {
        recorder.step(as_step ? step(x) : body(*this, x));
        if (after) after(*this);
      }
      recorder.save(net, loader, sgd);
    }
    recorder.finish(net);
  }
};

Tensor update(Small& small, const Tensor& x) { return small.update(x); }

TEST_F(ProofTest, WithoutAPlanNothingHappens) {
  ::unsetenv("WEFT_PROVE");
  EXPECT_FALSE(Proof::from_environment());
  Options o = of_ranks();
  o.findings->proof = nullptr;
  Small small(ones({4, 4}));
  small.train(o, update);
  EXPECT_FALSE(small.net.has_forward_hooks());
  EXPECT_FALSE(std::filesystem::exists(folder.path("ranks")));
}

TEST_F(ProofTest, KeepsTheTensorsOfAStep) {
  Small small(ones({4, 4}));
  small.train(of_ranks(R"(, "keep": {"step": 1})"), update);
  const auto file = io::load_safetensors(folder.path("ranks/rank-0-step-1.safetensors"));
  const auto lines = testing::record_lines(folder.path("ranks"), 0);
  std::map<std::string, std::string> hashes;
  for (const auto& [key, line] : lines) {
    if (!line.contains("hash") || line["step"] != 1) continue;
    std::string name = line["kind"];
    if (name == "output") name += "//0/0";
    if (name == "gradient") name += "/0/" + line["name"].get<std::string>();
    if (name == "weight") name += "/" + line["name"].get<std::string>();
    hashes[name] = line["hash"];
  }
  EXPECT_EQ(hashes.size(), 5U);
  EXPECT_EQ(file.tensors.size(), 5U);
  for (const auto& [name, x] : file.tensors) {
    std::ostringstream hash;
    hash << std::hex << std::setw(16) << std::setfill('0') << hash_of(x);
    EXPECT_EQ(hashes[name], hash.str()) << name;
  }
}

// The rates are those of the first rank, whatever the loop does between the batches.
TEST_F(ProofTest, RatesAreThoseOfTheRecord) {
  const auto decay = [](Small& small) { small.sgd.set_lr(small.sgd.lr() * 0.5); };
  Small(ones({4, 4})).train(of_ranks(), update, true, decay);
  manual_seed(1);
  Small(ones({4, 4})).train(of_one(), update);
  const auto one = testing::record_lines(folder.path("one"), 0);
  EXPECT_EQ(one.at("\"update\" 0 3 0 ").at("groups")[0].at("lr"), 0.1 / 8);
}

TEST_F(ProofTest, RefusesWhatCannotBeReplayed) {
  const Tensor data = arange(0, 16, 1).to(DType::f32).reshape({4, 4});
  const auto refused = [&](const auto& replay, const std::string& why) {
    EXPECT_WEFT_ERROR(replay(), InvalidArgument, why);
  };
  Small(data).train(of_ranks(), update);
  refused([&] { Small(data).train(of_one(), update, false); }, "outside of the body");
  refused([&] { Small(raw::add(data, 1)).train(of_one(), update); },
          "the samples are drawn at random as they are loaded");
  const auto with_loader = [&](const Options& o, const data::DataLoaderOptions& loading) {
    Small small(data);
    data::DataLoader loader(small.set, loading);
    Step step(o, [&](const Tensor& x) { return small.update(x); });
    Recorder recorder(o);
    recorder.resume(small.net, loader, small.sgd);
    while (recorder.next_epoch()) {
      for (auto& [x] : recorder.batches(loader)) {
        step(x);
        recorder.step(step(x));
      }
    }
  };
  refused([&] { with_loader(of_one(), {.batch_size = 3}); },
          "step 0 has other samples than that of rank 0: this loader is not made with "
          "Options::loader() or Trial::loader(), or its batch sampler was replaced afterwards");
  for (const auto& o :
       {of_one(), options(R"({"out": ")" + folder.path("x") + R"(", "side": "ranks"})")}) {
    refused([&] { with_loader(o, o.loader()); }, "a second call of a train::Step for one batch");
  }
  refused([&] { Small(zeros({5, 4})).train(of_one(), update); },
          "the records are of pair in f32 on 4 samples, this is pair in f32 on 5 samples");
  refused(
      [&] {
        Small(data).train(of_one(),
                          [](Small& s, const Tensor& x) { return s.net(x).square().mean(); });
      },
      "gradients that several steps add up cannot be replayed");
  refused(
      [&] {
        Small(data).train(of_one(), [](Small& s, const Tensor& x) {
          s.update(x);
          return s.update(x);
        });
      },
      "update 1 of 1 groups was not recorded");
  refused(
      [&] {
        Options o = of_one();
        o.resume = "latest";
        Small(data).train(o, update);
      },
      "leave --resume out");
  refused(
      [&] {
        Options o = of_one();
        data::DataLoader loader(data::TensorDataset<1>(data), o.loader());
        nn::Linear net(4, 3);
        Recorder recorder(o, {.rank = 0, .size = 2, .backend = "x"});
        recorder.resume(net, loader);
      },
      "the replay is of one process, this has 2 ranks");

  Small(data).train(of_ranks(), update, false);
  refused([&] { of_one(); }, "the program's steps are no train::Step");
  testing::write_file(folder.path("ranks/rank-0.jsonl"), "{\"kind\":\"run\",\n");
  refused([&] { of_one(); }, "rank-0.jsonl: not a JSON object");
  testing::write_file(folder.path("ranks/rank-0.jsonl"), "{\"kind\":\"run\",\"rank\":0}\n");
  refused([&] { of_one(); }, "rank-0.jsonl: not a record of a run");
  testing::write_file(folder.path("ranks/rank-0.jsonl"), "");
  refused([&] { of_one(); }, "there is no step in it");
}

// The recorded batches are made with them.
TEST_F(ProofTest, LoaderOptionsThatAreSetLaterAreIgnored) {
  Small(ones({4, 4})).train(of_ranks(), update);
  data::DataLoaderOptions loading = of_one().loader();
  loading.drop_last = loading.shuffle = true;
  loading.batch_size = 3;
  data::DataLoader loader(data::TensorDataset<1>(ones({4, 4})), loading);
  EXPECT_EQ(loader.size(), 2);
  for (auto& [x] : loader) EXPECT_EQ(x.shape(0), 2);
}

TEST_F(ProofTest, RefusesUnequalRanks) {
  Small(ones({4, 4})).train(of_ranks(), update);
  std::string text = testing::read_file(folder.path("ranks/rank-0.jsonl"));
  const std::string was = "\"ranks\":1,\"batches\":1", two = "\"ranks\":2,\"batches\":2";
  ASSERT_NE(text.find(was), std::string::npos);
  text.replace(text.find(was), was.size(), two);
  testing::write_file(folder.path("ranks/rank-0.jsonl"), text);
  EXPECT_WEFT_ERROR(of_one(), Io, "rank-1.jsonl: cannot be read");
  testing::write_file(folder.path("ranks/rank-1.jsonl"),
                      text.substr(0, text.find("{\"kind\":\"batch\",\"step\":3")));
  EXPECT_WEFT_ERROR(of_one(), InvalidArgument, "rank 1 has taken 3 steps, rank 0 4");
}

TEST_F(ProofTest, RefusesBadPlans) {
  for (const auto& [plan, why] :
       {std::pair("", "not a JSON object"), std::pair("[1]", "not a JSON object"),
        std::pair("{}", "\"out\" is missing, or no text"),
        std::pair(R"({"out": "x", "side": "two"})", "\"side\" is \"two\""),
        std::pair(R"({"out": "x", "side": "one"})", "\"from\" is missing"),
        std::pair(R"({"out": "x", "side": "ranks", "keep": 3})", "expected {\"step\": N}")}) {
    EXPECT_WEFT_ERROR(options(plan), InvalidArgument, why);
  }
  EXPECT_WEFT_ERROR(read_plan(folder.path("nowhere")), Io, "nowhere: cannot be read");
}

TEST_F(ProofTest, GraphAndResidentDataAreOff) {
  testing::CollectedLog log;
  Options o = of_ranks();
  o.graph = true;
  o.data_on_device = true;
  Small small(ones({4, 4}));
  small.train(o, update);
  EXPECT_FALSE(o.findings->graph);
  EXPECT_FALSE(o.loader().device_resident);
  EXPECT_HAS(log.text, "prove: steps run without --graph");
  EXPECT_HAS(log.text, "without --data-on-device");
}

}  // namespace
}  // namespace weft::train
