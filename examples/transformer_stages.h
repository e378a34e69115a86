// The transformer in the stages of a pipeline, of which each rank makes its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/examples/char_transformer.h"
#include "weft/weft.h"

namespace weft::examples {

/// Blocks under their numbers in the whole model.
class NumberedBlocks : public nn::Module<NumberedBlocks> {
 public:
  void add(std::int64_t number, const TransformerBlock& block) {
    list.emplace_back(number, child(std::to_string(number), block));
  }
  Tensor forward(Tensor x) {
    for (auto& [number, block] : list) x = block(x);
    return x;
  }

  std::vector<std::pair<std::int64_t, TransformerBlock>> list;
};

/// Some layers of a CharTransformer, under their names there.
class TransformerLayers : public nn::Module<TransformerLayers> {
 public:
  /// Blocks [first, end), with the first one the tables, with the last one the head. Draws what the
  /// whole model draws, layer by layer, and keeps its own.
  TransformerLayers(const TransformerOptions& o, std::int64_t first, std::int64_t end) {
    auto all_characters = table(o.characters, o.width), all_positions = table(o.context, o.width);
    nn::Linear last(o.width, o.characters);
    if (first == 0) {
      characters = child("characters", all_characters);
      positions = child("positions", all_positions);
    }
    if (end == o.layers) {
      norm = child("norm", nn::LayerNorm(o.width));
      head = child("head", last);
    }
    blocks = child("blocks", NumberedBlocks());
    for (std::int64_t i = 0; i < o.layers; ++i) {
      TransformerBlock block(o);
      if (first <= i && i < end) blocks->add(i, block);
    }
  }
  /// The layers of several stages.
  explicit TransformerLayers(const std::vector<TransformerLayers>& stages) {
    for (const TransformerLayers& stage : stages) {
      if (stage.characters) characters = child("characters", *stage.characters);
      if (stage.positions) positions = child("positions", *stage.positions);
      if (stage.norm) norm = child("norm", *stage.norm);
      if (stage.head) head = child("head", *stage.head);
    }
    blocks = child("blocks", NumberedBlocks());
    for (const TransformerLayers& stage : stages) {
      for (const auto& [number, block] : stage.blocks->list) blocks->add(number, block);
    }
  }

  Tensor forward(const Tensor& x) {
    Tensor y = x;
    if (characters) {
      const auto length = static_cast<double>(x.shape(1));
      y = (*characters)(x) + (*positions)(arange(0, length, 1, {DType::i64, x.device()}));
    }
    y = (*blocks)(y);
    return head ? (*head)((*norm)(y)) : y;
  }

  std::optional<nn::Embedding> characters, positions;
  std::optional<nn::LayerNorm> norm;
  std::optional<nn::Linear> head;
  std::optional<NumberedBlocks> blocks;
};

/// Those of all parameters of a CharTransformer, in its order.
inline std::vector<std::string> parameter_names(TransformerOptions o) {
  const std::string drawn = default_generators().state();
  o.characters = o.context = o.width = o.heads = 1;  // which names do not depend on
  std::vector<std::string> names;
  for (const auto& [name, x] : CharTransformer(o).named_parameters()) names.push_back(name);
  default_generators().set_state(drawn);
  return names;
}

/// What of the plan is for modules that these layers have.
inline parallel::ParallelPlan plan_for(const TransformerLayers& layers,
                                       parallel::ParallelPlan plan) {
  std::erase_if(plan, [&](const auto& entry) {
    const std::string child = entry.first.substr(0, entry.first.find('.'));
    return std::ranges::none_of(layers.named_parameters(), [&](const auto& named) {
      return named.first.starts_with(child + '.');
    });
  });
  return plan;
}

/// The model and the optimiser as one process has them, for checkpoints: put together of the parts
/// that ranks have of a layer, and of the layers that ranks of the pipeline have.
struct WholeTransformer {
  TransformerLayers own;
  std::shared_ptr<comm::ProcessGroup> parts;  ///< of the cut that was made last
  const parallel::Pipeline& pipe;
  std::vector<std::string> names;  ///< of all parameters, in CharTransformer's order

  io::NamedTensors state_dict() const {
    const auto all = pipe.all_gather_named(parallel::whole_state(*parts, own));
    const std::map<std::string, Tensor> by_name(all.begin(), all.end());
    io::NamedTensors whole;
    for (const std::string& name : names) whole.emplace_back(name, by_name.at(name));
    return whole;
  }
  void load_state_dict(const io::NamedTensors& values) const {
    io::NamedTensors here;
    for (const auto& [name, x] : own.state_dict()) {
      const auto given = std::ranges::find(values, name, [](auto& named) { return named.first; });
      if (given != values.end()) here.push_back(*given);
    }
    parallel::load_whole_state(own, here);
  }
};

class WholeTransformerAdam {
 public:
  using StandsFor = optim::AdamW;
  WholeTransformerAdam(const WholeTransformer& model, optim::AdamW& adam)
      : model_(model), adam_(model.parts, model.own, adam) {
    for (const auto& [name, x] : model.own.named_parameters()) {
      numbers_.push_back(std::ranges::find(model.names, name) - model.names.begin());
    }
  }

  // An optimiser numbers its parameters: here those of this rank, in a checkpoint those of all.
  io::NamedTensors state_dict() const {
    io::NamedTensors own;
    for (const auto& [name, x] : adam_.state_dict()) {
      const auto [number, rest] = taken_apart(name);
      if (number >= 0) {
        own.emplace_back("state." + std::to_string(numbers_[number]) + rest, x);
      } else if (model_.own.characters) {  // the rates, from the first stage
        own.emplace_back(name, x);
      }
    }
    return model_.pipe.all_gather_named(own);
  }
  void load_state_dict(const io::NamedTensors& state) {
    io::NamedTensors own;
    for (const auto& [name, x] : state) {
      const auto [number, rest] = taken_apart(name);
      const auto here = std::ranges::find(numbers_, number);
      if (number < 0) own.emplace_back(name, x);
      if (number < 0 || here == numbers_.end()) continue;
      own.emplace_back("state." + std::to_string(here - numbers_.begin()) + rest, x);
    }
    adam_.load_state_dict(own);
  }

 private:
  // "state.3.exp_avg" is {3, ".exp_avg"}, another name {-1, ""}.
  static std::pair<std::int64_t, std::string> taken_apart(const std::string& name) {
    const std::string prefix = "state.";
    if (!name.starts_with(prefix)) return {-1, ""};
    const std::size_t dot = name.find('.', prefix.size());
    return {std::stoll(name.substr(prefix.size())), name.substr(dot)};
  }

  const WholeTransformer& model_;
  parallel::StateOf<optim::AdamW> adam_;
  std::vector<std::int64_t> numbers_;  // in the whole model, of this rank's parameters
};

}  // namespace weft::examples
