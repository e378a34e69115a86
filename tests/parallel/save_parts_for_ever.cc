// save_parts_for_ever OUT: two ranks go on from the latest checkpoint in OUT and save again and
// again, each time with the next number as every value, until a test kills them.
#include <unistd.h>

#include "weft/autograd/autograd.h"
#include "weft/data/dataloader.h"
#include "weft/nn/ema.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/parallel/fully_shard.h"
#include "weft/tests/train/small_data.h"
#include "weft/train/recorder.h"

int main(int, char** argv) {
  using namespace weft;
  comm::run_ranks(2, [&](comm::ProcessGroup& group) {
    nn::Sequential model = {nn::Linear(100, 301), nn::Linear(301, 50)};
    auto sharded = parallel::fully_shard(model, group);
    nn::ExponentialMovingAverage ema(model, 0);
    auto averages = sharded.state_of(ema);
    train::Options options;
    options.out = argv[1];
    options.resume = "latest";
    train::Recorder recorder(
        options, {.rank = group.rank(), .size = group.size(), .gather = [&](const auto& text) {
                    return group.all_gather_object(text);
                  }});
    data::DataLoader loader(testing::Numbers(), {.batch_size = 4});
    recorder.resume(sharded, loader, averages);
    for (;;) {
      const auto value = static_cast<double>(recorder.steps() + 1);
      for (const Tensor& x : model.parameters()) {
        const NoGrad no_grad;
        x.fill_(value);
      }
      ema.update();
      recorder.step(scalar(value));
      recorder.save(sharded, loader, averages);
      if (group.rank() == 0 && ::write(STDOUT_FILENO, "", 1) != 1) return;
    }
  });
}
