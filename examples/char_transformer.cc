// Trains a small transformer to continue a text, character by character. `./weft run
// char_transformer --help` lists the options.
#include <algorithm>

#include "weft/core/runtime/file.h"
#include "weft/examples/text.h"
#include "weft/examples/transformer_program.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

/// Returns `start`, which is not empty, and `count` more characters. Each is drawn by the thread's
/// generator from the model's probabilities (softmax of logits / temperature).
std::string write_on(examples::CharTransformer& model, const examples::Text& text,
                     const std::string& start, std::int64_t count, double temperature,
                     std::int64_t context) {
  const NoGrad no_grad;
  const Device device = model.parameters()[0].device();
  std::vector<std::int64_t> numbers;
  for (const char c : start) numbers.push_back(text.number(c));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = std::min(std::ssize(numbers), context);
    const std::vector<std::int64_t> last(numbers.end() - length, numbers.end());
    const Tensor logits = model(from_vector(last, {1, length}).to(device)).select(1, length - 1);
    const auto shares = softmax(logits.to(DType::f64) / temperature, 1).to_vector<double>();
    // Takes the first character at which the sum of probabilities reaches a number drawn from [0,
    // 1).
    double drawn = rand({1}, DType::f64).item<double>();
    std::size_t next = 0;
    while (next + 1 < shares.size() && drawn >= shares[next]) drawn -= shares[next++];
    numbers.push_back(static_cast<std::int64_t>(next));
  }
  std::string result;
  for (const std::int64_t number : numbers) result += text.character(number);
  return result;
}

void char_transformer(const train::Options& options, examples::TransformerOptions net,
                      const std::string& start, std::int64_t sample, double temperature) {
  const examples::Text text(examples::read_text(options.data));
  net.characters = text.characters();
  examples::CharTransformer model(net);
  model.to(options.device, options.dtype);
  const std::string begin =
      start.empty() ? std::string(1, text.character(text.numbers()[0])) : start;
  for (const char c : begin) text.number(c);  // throws here, before the training
  const examples::TextParts parts = examples::split(text, net.context);
  if (train::show_model(options, model, {1, net.context}, DType::i64)) return;
  std::printf("%zu characters, %lld different ones; the last %zu are for the test\n",
              text.numbers().size(), static_cast<long long>(net.characters),
              text.numbers().size() / 10);
  optim::AdamW adam(model.parameters(), {.lr = options.lr});
  data::DataLoader loader(parts.train, options.loader());
  const auto loss_of = [&](const Tensor& x, const Tensor& y) {
    return examples::next_character_loss(model, x, y);
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
  if (recorder.interrupted()) return;

  step.reset();  // frees memory for the test
  const NoGrad no_grad;
  model.eval();
  const double bits = examples::bits_per_character(loss_of, parts.test, options);
  const std::string written = write_on(model, text, begin, sample, temperature, net.context);
  std::printf("%s\n", written.c_str());
  write_file_atomically(recorder.path("sample.txt"), written + "\n");
  recorder.finish(model, "bits_per_character", bits);
}

int main(int argc, char** argv) {
  examples::TransformerOptions net;
  std::string start;
  std::int64_t sample = 300;
  double temperature = 0.8;
  std::vector<train::Flag> flags = examples::transformer_flags(net);
  flags.insert(
      flags.end(),
      {{"--start", &start, "what the sample begins with; empty: the first character of the text"},
       {"--sample", &sample, "characters that it writes at the end"},
       {"--temperature", &temperature, "of the sample: below 1 surer, above 1 wilder"}});
  return train::run(
      argc, argv,
      examples::transformer_defaults(
          "char_transformer",
          "Trains a small transformer to write on a text, character by character."),
      [&](const train::Options& options) {
        char_transformer(options, net, start, sample, temperature);
      },
      flags);
}
