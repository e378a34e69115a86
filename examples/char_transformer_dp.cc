// Trains the transformer on several devices of one process: `./weft run char_transformer_dp
// --host-devices 2`.
#include "weft/examples/devices.h"
#include "weft/examples/text.h"
#include "weft/examples/transformer_program.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

void char_transformer(train::Options options, examples::TransformerOptions net,
                      const std::string& names) {
  const std::vector<Device> devices = examples::devices(options, names);
  const examples::Text text(examples::read_text(options.data));
  net.characters = text.characters();
  examples::CharTransformer model(net);
  model.to(options.device, options.dtype);
  const examples::TextParts parts = examples::split(text, net.context);
  if (train::show_model(options, model, {1, net.context}, DType::i64)) return;
  parallel::DataParallel dp(model, {.devices = devices});
  optim::AdamW adam(model.parameters(), {.lr = options.lr});
  data::DataLoader loader(parts.train, options.loader());
  const auto loss_of = [&](const Tensor& x, const Tensor& y) {
    return examples::next_character_loss(dp, x, y);
  };
  train::Step step(options, [&](const Tensor& x, const Tensor& y) {
    adam.zero_grad();
    const Tensor loss = loss_of(x, y);
    loss.backward();
    adam.step();
    return loss;
  });

  train::Recorder recorder(options);
  recorder.resume(model, loader, adam);
  while (recorder.next_epoch()) {
    for (auto& [x, y] : recorder.batches(loader)) recorder.step(step(x, y));
    recorder.save(model, loader, adam);
  }
  std::fputs(train::memory_table(devices).c_str(), stdout);
  if (recorder.interrupted()) return;

  const NoGrad no_grad;
  model.eval();
  recorder.note(examples::peaks(devices));
  recorder.finish(model, "bits_per_character",
                  examples::bits_per_character(loss_of, parts.test, options));
}

int main(int argc, char** argv) {
  examples::TransformerOptions net;
  std::string devices = "all";
  std::vector<train::Flag> flags = examples::transformer_flags(net);
  flags.push_back(examples::devices_flag(devices));
  return train::run(
      argc, argv,
      examples::transformer_defaults(
          "char_transformer_dp", "Trains a small transformer on several devices of one process."),
      [&](const train::Options& options) { char_transformer(options, net, devices); }, flags);
}
