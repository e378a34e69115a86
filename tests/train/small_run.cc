// small_run OPTIONS: a small network on the data of --data, written like the examples, for tests of
// whole runs.
#include <cstdlib>
#include <string>

#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/data/dataloader.h"
#include "weft/nn/activation.h"
#include "weft/nn/flatten.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/sequential.h"
#include "weft/optim/adam.h"
#include "weft/train/program.h"
#include "weft/train/recorder.h"

using namespace weft;

int main(int argc, char** argv) {
  return train::run(
      argc, argv, {.example = "small_run", .epochs = 2}, [](const train::Options& options) {
        if (const char* spins = std::getenv("GOMP_SPINCOUNT"))
          log_info(std::string("spins: ") + spins);
        nn::Sequential model{nn::Flatten(), nn::Linear(64, 16), nn::ReLU(), nn::Linear(16, 10)};
        model.to(options.device, options.dtype);
        optim::Adam adam(model.parameters(), {.lr = options.lr});
        data::DataLoader loader(data::Mnist(options.data, {.dtype = options.dtype}),
                                options.loader());
        train::Recorder recorder(options);
        recorder.resume(model, loader, adam);
        while (recorder.next_epoch()) {
          for (auto& [x, label] : recorder.batches(loader)) {
            adam.zero_grad();
            const Tensor loss = nn::cross_entropy(model(x), label);
            loss.backward();
            adam.step();
            recorder.step(loss);
          }
          recorder.save(model, loader, adam);
        }
        if (!recorder.interrupted()) recorder.finish(model);
      });
}
