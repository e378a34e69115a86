// Takes in one process the steps of several ranks: with the same --batch-size and --lr the weights
// are, to the bit, those that `./weft launch --nproc-per-node 2 mlp_ddp` or autoencoder_ddp have
// (docs/ddp.md). With --membership those of mlp_elastic, whose ranks came and went
// (docs/elastic.md).
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "weft/core/runtime/file.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/mlp.h"
#include "weft/examples/shards.h"

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

// Each batch is that of all ranks. loss(model's outputs, x, label); test(loader) returns the figure
// called `figure`.
template <class Model, class Optimizer, class Loss, class Test>
void train_as_ranks(train::Options options, int ranks, Model& model, Optimizer& optimizer,
                    const Loss& loss_of, const char* figure, const Test& test) {
  WEFT_CHECK(ranks <= 64, InvalidArgument, "as_ranks", "--ranks is ", ranks, ", at most 64");
  const data::Mnist images(options.data, {.dtype = options.dtype});
  const auto sampler = std::make_shared<examples::ShardsSampler>(
      images.size(), ranks, options.batch_size, options.shuffle);
  options.batch_size *= ranks;
  data::DataLoader loader(images, options.loader(sampler));
  train::Recorder recorder(options);
  recorder.resume(model, loader, optimizer);  // only for --weights
  while (recorder.next_epoch()) {
    for (auto& [x, label] : recorder.batches(loader)) {
      optimizer.zero_grad();
      const Tensor loss = loss_of(examples::in_shards(model, x, ranks), x, label);
      loss.backward();
      optimizer.step();
      recorder.step(loss);
    }
  }
  if (recorder.interrupted()) return;
  auto tests =
      train::test_loader(data::Mnist(options.data, {.train = false, .dtype = options.dtype}),
                         options, {.batch_size = 500, .device = options.device});
  recorder.finish(model, figure, test(tests));
}

void mlp(const train::Options& options, int ranks) {
  nn::Sequential model = examples::mlp();
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  optim::SGD sgd(model.parameters(), {.lr = options.lr});
  train_as_ranks(
      options, ranks, model, sgd,
      [](const Tensor& y, const Tensor&, const Tensor& label) {
        return nn::cross_entropy(y, label);
      },
      "accuracy", [&](auto& tests) { return train::accuracy(model, tests); });
}

void autoencoder(const train::Options& options, int ranks) {
  examples::Autoencoder model;
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  optim::Adam adam(model.parameters(), {.lr = options.lr});
  train_as_ranks(
      options, ranks, model, adam,
      [](const auto& y, const Tensor& x, const Tensor&) { return nn::mse_loss(y.first, x); }, "mse",
      [&](auto& tests) {
        NoGrad no_grad;
        model.eval();
        double squared_error = 0;
        for (auto& [x, label] : tests)
          squared_error += nn::mse_loss(model(x).first, x).template item<double>() * x.shape(0);
        return squared_error / tests.dataset().size();
      });
}

// The steps of a run of mlp_elastic: who was there, from a step on.
struct Record {
  struct Span {
    std::int64_t step = 0;
    std::vector<std::int64_t> ranks;
  };
  std::vector<Span> ranks, epochs;
  std::int64_t steps = 0;
};

Record read_record(const std::string& path) {
  std::ifstream file(path);
  const auto record = nlohmann::json::parse(file, nullptr, false);
  const auto check = [&](bool holds) {
    WEFT_CHECK(holds, InvalidArgument, "as_ranks", path, " is no membership.json of mlp_elastic");
  };
  const auto member = [&](const nlohmann::json& of, const char* name) -> const nlohmann::json& {
    check(of.is_object() && of.contains(name));
    return of[name];
  };
  const auto number = [&](const nlohmann::json& value) {
    check(value.is_number_integer());
    return value.get<std::int64_t>();
  };
  const auto items = [&](const nlohmann::json& of, const char* name) -> const nlohmann::json& {
    check(member(of, name).is_array());
    return of[name];
  };
  const auto spans = [&](const char* name) {
    std::vector<Record::Span> list;
    for (const auto& entry : items(record, name)) {
      Record::Span& span = list.emplace_back();
      span.step = number(member(entry, "step"));
      for (const auto& rank : items(entry, "ranks")) span.ranks.push_back(number(rank));
      const std::set<std::int64_t> different(span.ranks.begin(), span.ranks.end());
      check(!different.empty() && different.size() == span.ranks.size());
    }
    check(!list.empty());
    return list;
  };
  return {spans("ranks"), spans("epochs"), number(member(record, "steps"))};
}

// A rank's gradients are divided by the number of ranks, and added up in their order, as by shm.
template <class Optimizer>
void elastic_mlp(const train::Options& options, const std::string& path) {
  const Record record = read_record(path);
  nn::Sequential model = examples::mlp();
  model.to(options.device, options.dtype);
  train::load_weights(options, model);
  Optimizer optimizer(model.parameters(), {.lr = options.lr});
  const data::Mnist images(options.data, {.dtype = options.dtype});
  // Who was there at a step: the last entry that begins no later.
  const auto at = [](const std::vector<Record::Span>& list, std::int64_t step) {
    const Record::Span* found = &list[0];
    for (const Record::Span& span : list)
      if (span.step <= step) found = &span;
    return found->ranks;
  };
  std::int64_t step = 0;
  for (int epoch = 0; step < record.steps; ++epoch) {
    const auto dealt = at(record.epochs, step);
    std::vector<std::vector<std::int64_t>> shares(dealt.size());
    for (std::size_t i = 0; i < dealt.size(); ++i) {
      data::DistributedSampler(images.size(), {.num_replicas = static_cast<int>(dealt.size()),
                                               .rank = static_cast<int>(i),
                                               .shuffle = options.shuffle})
          .order(std::to_string(epoch), shares[i]);
    }
    const std::span<const std::int64_t> all = shares[0];
    for (std::size_t first = 0; first < all.size() && step < record.steps; ++step) {
      const auto count = std::min(static_cast<std::size_t>(options.batch_size), all.size() - first);
      const auto ranks = at(record.ranks, step);
      std::vector<Tensor> sums;
      for (const std::int64_t rank : ranks) {
        const auto share = std::ranges::find(dealt, rank) - dealt.begin();
        WEFT_CHECK(share < std::ssize(dealt), InvalidArgument, "as_ranks", path, ": rank ", rank,
                   " takes part in step ", step, ", but epoch ", epoch,
                   " was not dealt to it; the file is not as mlp_elastic has written it");
        const auto [x, label] = images.get_batch(
            std::span(shares[static_cast<std::size_t>(share)]).subspan(first, count));
        optimizer.zero_grad();
        nn::cross_entropy(model(x.to(options.device)), label.to(options.device)).backward();
        for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
          const Tensor gradient = optimizer.parameters()[i].grad().clone();
          raw::mul_(gradient, 1.0 / static_cast<double>(ranks.size()));
          rank == ranks[0] ? sums.push_back(gradient)
                           : void(raw::add_scaled_(sums[i], 1, gradient));
        }
      }
      for (std::size_t i = 0; i < sums.size(); ++i)
        raw::copy_(optimizer.parameters()[i].grad(), sums[i]);
      optimizer.step();
      first += count;
    }
  }
  WEFT_CHECK(!make_folders(options.out), Io, "as_ranks", options.out, ": cannot make this folder");
  io::save_safetensors(options.out + "/model.safetensors", model.state_dict(), {{"format", "pt"}});
}

int main(int argc, char** argv) {
  std::string program = "mlp", membership;
  bool adam = false;
  std::int64_t ranks = 2;
  return train::run(
      argc, argv,
      {.example = "as_ranks",
       .description = "Takes in one process the steps of several ranks of mlp_ddp or "
                      "autoencoder_ddp with the same --batch-size and --lr.",
       .batch_size = 64,
       .lr = 0.1},
      [&](const train::Options& options) {
        // The order of the images counts epochs from 0, so a resumed run would repeat it.
        WEFT_CHECK(options.resume.empty(), InvalidArgument, "as_ranks", "cannot --resume");
        if (!membership.empty()) {
          return (adam ? elastic_mlp<optim::Adam> : elastic_mlp<optim::SGD>)(options, membership);
        }
        (program == "mlp" ? mlp : autoencoder)(options, static_cast<int>(ranks));
      },
      {{"--program", &program, "whose steps", {"mlp", "autoencoder"}},
       {"--ranks", &ranks, "how many take them"},
       {"--membership", &membership,
        "the membership.json of a run of mlp_elastic, whose steps it takes"},
       {"--adam", &adam, "for --membership of a run with --zero"}});
}
