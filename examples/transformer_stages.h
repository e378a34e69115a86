// The transformer in the stages of a pipeline, of which each rank makes its own.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
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
    blocks = child("blocks", blocks);
    for (std::int64_t i = 0; i < o.layers; ++i) {
      TransformerBlock block(o);
      if (first <= i && i < end) blocks.add(i, block);
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
    blocks = child("blocks", blocks);
    for (const TransformerLayers& stage : stages) {
      for (const auto& [number, block] : stage.blocks.list) blocks.add(number, block);
    }
  }

  Tensor forward(const Tensor& x) {
    Tensor y = x;
    if (characters) {
      const auto length = static_cast<double>(x.shape(1));
      y = (*characters)(x) + (*positions)(arange(0, length, 1, {DType::i64, x.device()}));
    }
    y = blocks(y);
    return head ? (*head)((*norm)(y)) : y;
  }

  std::optional<nn::Embedding> characters, positions;
  std::optional<nn::LayerNorm> norm;
  std::optional<nn::Linear> head;
  NumberedBlocks blocks;
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

/// The entries of the plan for modules that these layers have.
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

/// This rank's part of the model, for checkpoints: with the names and places of one process.
struct OwnTransformer {
  TransformerLayers layers;
  std::vector<std::string> names;             ///< of all parameters, in CharTransformer's order
  std::shared_ptr<comm::ProcessGroup> ranks;  ///< of the cut that was made last
  const parallel::Pipeline& pipe;

  nn::ModuleBase module() const { return layers; }
  nn::StateParts parts() const { return parallel::state_parts(layers); }
  void load_parts(const nn::SavedState& saved) const {
    nn::SavedState own = {own_of(saved.entries, &nn::SavedState::Entry::name), saved.read};
    parallel::load_parts(layers, own);
  }
  /// The whole model on every rank: for --weights.
  nn::NamedTensors state_dict() const {
    return pipe.all_gather_named(parallel::whole_state(*ranks, layers));
  }
  void load_state_dict(const nn::NamedTensors& values) const {
    parallel::load_whole_state(layers, own_of(values, &nn::NamedTensors::value_type::first));
  }

 private:
  // This rank's entries of a list that has one for each parameter of the whole model. All ranks
  // find the same mistakes.
  template <class List, class Name>
  List own_of(const List& all, Name name_of) const {
    std::set<std::string> given;
    for (const auto& one : all) given.insert(one.*name_of);
    WEFT_CHECK(given == std::set<std::string>(names.begin(), names.end()), InvalidArgument,
               "char_transformer_3d", "these values are of another model, with ", given.size(),
               " parameters in place of ", names.size());
    List own;
    for (const auto& [name, x] : layers.named_parameters()) {
      own.push_back(*std::ranges::find(all, name, name_of));
    }
    return own;
  }
};

/// The same for its optimiser, which numbers only the parameters of this rank. A checkpoint numbers
/// those of the whole model.
class OwnAdam {
 public:
  using StandsFor = optim::AdamW;
  OwnAdam(const OwnTransformer& model, optim::AdamW& adam) : layers_(model.layers), adam_(adam) {
    for (const auto& [name, x] : layers_.named_parameters()) {
      numbers_.push_back(std::ranges::find(model.names, name) - model.names.begin());
    }
  }

  nn::StateParts parts() const {
    nn::StateParts parts = parallel::state_parts(layers_, adam_);
    for (nn::StatePart& part : parts) {
      const auto [number, rest] = taken_apart(part.name);
      if (number >= 0) part.name = entry(numbers_[static_cast<std::size_t>(number)], rest);
    }
    return parts;
  }
  void load_parts(const nn::SavedState& saved) {
    nn::SavedState own;
    std::map<std::string, std::string> name_of;  // in the checkpoint
    for (nn::SavedState::Entry each : saved.entries) {
      const std::string name = each.name;
      const auto [number, rest] = taken_apart(name);
      const auto here = std::ranges::find(numbers_, number);
      if (number >= 0 && here == numbers_.end()) continue;
      if (number >= 0) each.name = entry(here - numbers_.begin(), rest);
      name_of[each.name] = name;
      own.entries.push_back(std::move(each));
    }
    own.read = [&](const std::string& name, const nn::Cut& cut, const Tensor& part) {
      saved.read(name_of.at(name), cut, part);
    };
    parallel::load_parts(layers_, adam_, own);
  }

 private:
  static std::string entry(std::int64_t number, const std::string& rest) {
    return "state." + std::to_string(number) + rest;
  }
  // "state.3.exp_avg" is {3, ".exp_avg"}, another name {-1, ""}.
  static std::pair<std::int64_t, std::string> taken_apart(const std::string& name) {
    const std::string prefix = "state.";
    if (!name.starts_with(prefix)) return {-1, ""};
    std::int64_t number = -1;
    const char* const end = name.data() + name.size();
    const char* const rest = std::from_chars(name.data() + prefix.size(), end, number).ptr;
    if (rest == end || *rest != '.') return {-1, ""};
    return {number, std::string(rest, end)};
  }

  TransformerLayers layers_;
  optim::AdamW& adam_;
  std::vector<std::int64_t> numbers_;  // in the whole model, of this rank's parameters
};

}  // namespace weft::examples
