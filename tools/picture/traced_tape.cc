// Runs an example model and its loss, once, on two inputs of zeros, and prints the tape of the loss
// as JSON: `traced_tape MODEL`. "text" is what autograd::print() writes.
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "weft/core/runtime/file.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/char_transformer.h"
#include "weft/examples/cnn.h"
#include "weft/examples/mlp.h"
#include "weft/weft.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr const char* kOp = "traced_tape";
constexpr std::int64_t kBatch = 2;

template <class Model>
json tape_of(const Model& model, const Tensor& loss) {
  std::ostringstream text;
  autograd::print(loss, text);
  json nodes = json::array();
  for (const autograd::TapeNode& node : autograd::tape(loss)) {
    std::string name = node.op;
    if (node.leaf.defined()) {
      for (const auto& [path, parameter] : model.named_parameters()) {
        if (parameter.same(node.leaf)) name = path;
      }
    }
    nodes.push_back({{"name", name},
                     {"module", node.module},
                     {"is_leaf", node.leaf.defined()},
                     {"shape", std::vector<std::int64_t>(node.shape.begin(), node.shape.end())},
                     {"saved_bytes", node.saved_bytes},
                     {"operands", node.operands}});
  }
  return {{"batch", kBatch}, {"nodes", nodes}, {"text", text.str()}};
}

template <class Model>
json classifier(Model model, const Shape& image) {
  Shape shape = image;
  shape.insert(0, kBatch);
  return tape_of(model, nn::cross_entropy(model(zeros(shape)), zeros({kBatch}, DType::i64)));
}

json autoencoder() {
  examples::Autoencoder model;
  const Tensor x = zeros({kBatch, 1, 28, 28});
  return tape_of(model, nn::mse_loss(model(x).first, x));
}

json transformer() {
  examples::CharTransformer model({.characters = 64, .layers = 1});
  const Tensor text = zeros({kBatch, 64}, DType::i64);
  return tape_of(model, examples::next_character_loss(model, text, text));
}

json trace(const std::string& name) {
  const std::map<std::string, std::function<json()>> models = {
      {"mlp", [] { return classifier(examples::mlp(), {1, 28, 28}); }},
      {"autoencoder", autoencoder},
      {"cnn", [] { return classifier(examples::cnn({.width_scale = 0.125}), {3, 32, 32}); }},
      {"char_transformer", transformer}};
  const auto found = models.find(name);
  WEFT_CHECK(found != models.end(), InvalidArgument, kOp, "got the model '", name,
             "', expected mlp, autoencoder, cnn or char_transformer");
  json run = found->second();
  run["model"] = name;
  return run;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    std::printf("%s\n", weft::trace(argc == 2 ? argv[1] : "").dump().c_str());
    weft::flush_stdout();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "traced_tape: error: %s\n", error.what());
    return 2;
  }
}
