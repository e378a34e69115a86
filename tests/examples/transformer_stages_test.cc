// The stages of char_transformer_3d and a checkpoint of the whole model.
#include "weft/examples/transformer_stages.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/tests/comm/ranks.h"
#include "weft/tests/io/files.h"
#include "weft/train/checkpoint.h"
#include "weft/weft.h"

namespace weft::examples {
namespace {

std::uint64_t bytes_of(const nn::StateParts& parts) {
  std::uint64_t bytes = 0;
  for (const nn::StatePart& part : parts)
    bytes += part.tensor.numel() * size_of(part.tensor.dtype());
  return bytes;
}

TEST(TransformerStages, ARankReadsOnlyItsOwn) {
  const TransformerOptions o{.characters = 9, .context = 4, .width = 8, .heads = 2, .layers = 3};
  CharTransformer whole(o);
  optim::AdamW adam(whole.parameters());
  whole(zeros({2, o.context}, DType::i64)).sum().backward();
  adam.step();  // makes the moments
  const testing::TempFolder folder;
  const std::string path = folder.path("checkpoint.safetensors");
  train::save_checkpoint(path, {.model = whole.state_dict(), .parts = {adam.state_dict()}});
  std::uint64_t all = 0;
  for (const Tensor& x : whole.parameters()) all += 3 * 4 * std::uint64_t(x.numel());

  std::array<std::uint64_t, 2> read = {};
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    const auto ranks = group.duplicate();
    std::vector<TransformerLayers> own;
    const auto make_stage = [&](std::size_t s) {
      own.emplace_back(o, s == 0 ? 0 : 1, s == 0 ? 1 : o.layers);
      return nn::AnyModule(own.back());
    };
    parallel::Pipeline pipe(2, make_stage, {.chunks = 2, .group = ranks});
    const OwnTransformer saved{TransformerLayers(own), parameter_names(o), ranks, pipe};
    optim::AdamW own_adam(saved.layers.parameters());
    OwnAdam state(saved, own_adam);
    const train::CheckpointReader reader(path);
    const std::uint64_t before = reader.bytes_read();
    saved.load_parts(reader.model());
    state.load_parts(reader.part(0));
    read[static_cast<std::size_t>(group.rank())] = reader.bytes_read() - before;
    EXPECT_EQ(reader.bytes_read() - before, bytes_of(saved.parts()) + bytes_of(state.parts()));
    for (const auto& [name, x] : saved.layers.named_parameters()) {
      const auto& named = whole.named_parameters();
      const auto there = std::ranges::find(named, name, &nn::NamedTensors::value_type::first);
      EXPECT_EQ(x.to_vector<float>(), there->second.to_vector<float>()) << name;
    }
  });
  EXPECT_GT(read[0], all / 5);
  EXPECT_LT(read[0], all / 2);
  EXPECT_GE(read[0] + read[1], all);
  EXPECT_LT(read[0] + read[1], all + 1000);  // the optimiser's steps
}

}  // namespace
}  // namespace weft::examples
