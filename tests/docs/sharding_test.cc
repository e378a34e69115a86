// Checks that the code on docs/sharding.md, taken from the page, does what the page says.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "weft/tests/comm/ranks.h"
#include "weft/weft.h"

namespace weft {
namespace {

struct Net : nn::Module<Net> {
  nn::Embedding words = child("words", nn::Embedding(7, 8));
  nn::Embedding places = child("places", nn::Embedding(6, 8));
  nn::MultiheadAttention attention =
      child("attention", nn::MultiheadAttention(8, 2, {.batch_first = true}));
  nn::Linear head = child("head", nn::Linear(8, 7));

  Tensor forward(const Tensor& text, std::int64_t first) {
    const auto begin = static_cast<double>(first), end = begin + static_cast<double>(text.shape(1));
    const Tensor x = words(text) + places(arange(begin, end, 1, DType::i64));
    return head(attention(x, {.is_causal = true}));
  }
};

Net seeded_net() {
  manual_seed(3);
  Net net;
  net.to(DType::f64);
  return net;
}

// Sums in another order: rounding gives some 1e-16.
TEST(ShardingPage, PartsOfSequencesTrainAsOneProcess) {
  const auto batch = [](int step) {
    std::vector<std::int64_t> text(13), next;
    for (std::int64_t i = 0; i < 13; ++i) text[static_cast<std::size_t>(i)] = i * (i + step) % 7;
    return std::pair(from_vector(std::vector(text.begin(), text.end() - 1), {2, 6}),
                     from_vector(std::vector(text.begin() + 1, text.end()), {2, 6}));
  };
  Net plain = seeded_net();
  optim::SGD plain_sgd(plain.parameters(), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    const auto [x, y] = batch(step);
    plain_sgd.zero_grad();
    nn::cross_entropy(plain(x, 0).flatten(0, 1), y.flatten()).backward();
    plain_sgd.step();
  }
  std::vector<Net> nets = {seeded_net(), seeded_net()};
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    const comm::Mesh mesh(group.duplicate(), {{"dp", 1}, {"cp", 2}});
    Net& model = nets[static_cast<std::size_t>(group.rank())];
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
#include "weft/tests/docs/context_parallel.inc"
  });
  for (const Net& net : nets) {
    for (std::size_t i = 0; i < net.parameters().size(); ++i) {
      EXPECT_TRUE(allclose(net.parameters()[i], plain.parameters()[i], 0, 1e-12)) << i;
    }
  }
}

}  // namespace
}  // namespace weft
