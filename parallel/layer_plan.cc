#include "weft/parallel/layer_plan.h"

#include <algorithm>
#include <any>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <type_traits>

#include "weft/core/base/error.h"
#include "weft/nn/attention.h"
#include "weft/nn/repr.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "parallelize";

const Shard* as_shard(const Layout& layout) { return std::get_if<Shard>(&layout); }
bool is_last(const Layout& layout) { return as_shard(layout) && as_shard(layout)->dim == -1; }

std::string to_string(const std::optional<Layout>& layout) {
  return layout ? parallel::to_string(*layout) : "the default";
}

std::string text_of(const ParallelStyle& style) {
  return std::visit(
      [](const auto& s) {
        std::string text = weft::detail::type_name<std::remove_cvref_t<decltype(s)>>();
        if constexpr (requires { s.input; }) {
          text += " from " + to_string(s.input) + " to " + to_string(s.output);
        } else if constexpr (requires { s.sequence_dim; }) {
          text += detail::concat(" along ", s.sequence_dim);
        } else {
          text += detail::concat(" along ", s.dim);
        }
        return text;
      },
      style);
}

// Whether the name matches the pattern, in which each * stands for any characters.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*') {
    return !name.empty() && pattern[0] == name[0] && matches(pattern.substr(1), name.substr(1));
  }
  for (std::size_t i = 0; i <= name.size(); ++i) {
    if (matches(pattern.substr(1), name.substr(i))) return true;
  }
  return false;
}

// As matches(), for paths, which are compared name by name.
bool path_matches(std::string_view pattern, std::string_view path) {
  if (path.empty()) return pattern.empty();  // the outermost module
  const std::size_t in_pattern = pattern.find('.'), in_path = path.find('.');
  if (!matches(pattern.substr(0, in_pattern), path.substr(0, in_path))) return false;
  if (in_pattern == std::string_view::npos || in_path == std::string_view::npos) {
    return in_pattern == in_path;
  }
  return path_matches(pattern.substr(in_pattern + 1), path.substr(in_path + 1));
}

// Makes the layers of a module that the plan names, and checks that the style is for it.
struct MakeLayers {
  const nn::ModuleBase& module;
  const std::string &path, &name;
  const std::string style;
  int rank, n;
  std::vector<PartLayer>& layers;

  using Kind = PartLayer::Kind;

  PartLayer& add(Kind kind, const Layout& input, const Layout& output) {
    return layers.emplace_back(PartLayer{module, path, name, kind, input, output});
  }
  void cut(PartLayer& layer, const char* parameter, int dim, std::int64_t blocks = 1) {
    const Tensor x = own_parameter(layer.module, parameter);
    if (!x.defined()) return;
    layer.parameters.emplace_back(
        x, nn::Cut{.whole = x.shape(), .dim = dim, .blocks = blocks, .rank = rank, .size = n});
  }

  void check_type(std::initializer_list<const char*> types) const {
    const std::string& type = module.type_name();
    std::string all;
    for (const char* one : types) all += (all.empty() ? "" : " or ") + std::string(one);
    WEFT_CHECK(std::ranges::find(types, type) != types.end(), InvalidArgument, kOp, style,
               " is for ", all, ", but ", name, " is a ", type);
  }
  void check_layout(bool allowed, const char* what, const Layout& layout,
                    const char* expected) const {
    WEFT_CHECK(allowed, InvalidArgument, kOp, name, "'s ", what, " cannot be ", to_string(layout),
               " with ", style, ": expected ", expected);
  }
  void check_features(const char* what, const Layout& layout) const {
    check_layout(!as_shard(layout) || is_last(layout), what, layout, "Shard(-1) or Replicate");
  }
  void check_sum(const Layout& output) const {
    check_layout(!is_last(output), "output", output, "Replicate or Shard of another dimension");
  }
  void check_divides(std::int64_t number, const char* what) const {
    WEFT_CHECK(number % n == 0, InvalidArgument, kOp, name, " has ", number, ' ', what,
               ", which do not divide by ", n, " ranks (", style, ')');
  }
  Tensor weight() const {
    const Tensor x = own_parameter(module, "weight");
    WEFT_CHECK(x.defined() && x.dim() == 2, InvalidArgument, kOp, style,
               " needs a weight of two dimensions, and ", name, " has none");
    return x;
  }

  void operator()(const ColwiseParallel& s) {
    check_type({"Linear"});
    check_features("output", s.output);
    check_divides(weight().shape(0), "outputs");
    columns(Kind::column, s.input, s.output);
  }
  void operator()(const RowwiseParallel& s) {
    check_type({"Linear"});
    check_features("input", s.input);
    check_sum(s.output);
    check_divides(weight().shape(1), "inputs");
    row(add(Kind::row, s.input, s.output));
  }
  void operator()(const HeadParallel& s) {
    check_type({"MultiheadAttention"});
    check_sum(s.output);
    const auto* const heads = std::any_cast<nn::AttentionHeads>(&module.shared_state());
    WEFT_CHECK(heads, InvalidArgument, kOp, name, " is no nn::MultiheadAttention");
    WEFT_CHECK(!heads->exchange && heads->part.count == 1, InvalidArgument, kOp, name,
               " shares its heads or sequences with other ranks already");
    check_divides(heads->all, "heads");
    PartLayer& layer = add(Kind::heads, s.input, s.output);
    cut(layer, "in_proj_weight", 0, 3);
    cut(layer, "in_proj_bias", 0, 3);
    for (const auto& [within, child] : module.named_modules()) {
      if (within != "out_proj") continue;
      const std::string below = path.empty() ? within : path + '.' + within;
      row(layers.emplace_back(PartLayer{child, below, below, Kind::row, Shard{}, s.output}));
    }
  }
  void operator()(const VocabParallel& s) {
    check_type({"Embedding", "Linear"});
    weight();
    if (module.type_name() == "Linear") {
      const Layout output = s.output.value_or(Shard{});
      check_features("output", output);
      return columns(Kind::column, s.input, output);
    }
    const Layout output = s.output.value_or(Replicate{});
    check_layout(!as_shard(s.input), "input", s.input, "Replicate");
    check_sum(output);
    WEFT_CHECK(module.to_string().find("padding_idx") == std::string::npos, InvalidArgument, kOp,
               name, " has a padding_idx, which VocabParallel does not know");
    columns(Kind::words, s.input, output);
  }
  void operator()(const SequenceParallel& s) {
    for (const auto& [within, part] : module.named_modules()) {
      const std::string& type = part.type_name();
      // Not Linear and Embedding: a pipeline may compute their weights' gradients later.
      WEFT_CHECK(!mixes_elements(type) && type != "Linear" && type != "Embedding", InvalidArgument,
                 kOp, style, " is for layers such as LayerNorm and Dropout, but ", name,
                 within.empty() ? " is a " : " contains a ", type);
      check_draws_all(kOp, part, name);
    }
    PartLayer& layer = add(Kind::sequence, Shard{s.sequence_dim}, Shard{s.sequence_dim});
    for (const auto& [within, x] : module.named_parameters()) {
      layer.parameters.emplace_back(
          x, nn::Cut{.whole = x.shape(), .dim = -1, .rank = rank, .size = n});
    }
  }
  void operator()(const DropoutParallel& s) {
    check_type({"Dropout"});
    check_draws_all(kOp, module, name);
    add(Kind::dropout, Shard{s.dim}, Shard{s.dim});
  }

 private:
  void columns(Kind kind, const Layout& input, const Layout& output) {
    PartLayer& layer = add(kind, input, output);
    cut(layer, "weight", 0);
    cut(layer, "bias", 0);
  }
  void row(PartLayer& layer) {
    cut(layer, "weight", 1);
    cut(layer, "bias", -1);
  }
};

// "a.b" within "a"; all paths are within the root's, "".
bool is_within(const std::string& path, const std::string& outer) {
  return outer.empty() || path == outer || path.starts_with(outer + '.');
}

// Two layers that share a parameter must cut it alike, and other modules must not use it.
void check_shared(const nn::NamedModules& modules, const std::vector<PartLayer>& layers) {
  for (const auto& [path, module] : modules) {
    for (const auto& [name, x] : module.named_parameters(false)) {
      const PartLayer* first = nullptr;
      const nn::Cut* cut = nullptr;
      bool here = false;
      for (const PartLayer& layer : layers) {
        for (const auto& [parameter, how] : layer.parameters) {
          if (!parameter.same(x)) continue;
          here = here || is_within(path, layer.path);
          WEFT_CHECK(!cut || (cut->dim == how.dim && cut->blocks == how.blocks && how.dim >= 0),
                     InvalidArgument, kOp, first->name, " and ", layer.name, " share a parameter, ",
                     name, ", which the plan treats in two ways");
          first = &layer, cut = &how;
        }
      }
      WEFT_CHECK(!first || here, InvalidArgument, kOp, path.empty() ? module.type_name() : path,
                 "'s ", name, " is a parameter of ", first->name,
                 ", too: the plan must name both, with the same style");
    }
  }
}

}  // namespace

std::string to_string(const Layout& layout) {
  const Shard* const shard = std::get_if<Shard>(&layout);
  return shard ? detail::concat("Shard(", shard->dim, ')') : "Replicate";
}

std::string to_string(const ParallelPlan& plan) {
  std::string text = "plan:";
  for (const auto& [pattern, style] : plan) text += " '" + pattern + "' " + text_of(style) + ';';
  return text;
}

bool mixes_elements(const std::string& type) {
  constexpr const char* kBegins[] = {"BatchNorm", "Conv",         "Dropout2d", "GRU",
                                     "GroupNorm", "InstanceNorm", "LSTM",      "MultiheadAttention",
                                     "RNN",       "SyncBatchNorm"};
  return std::ranges::any_of(kBegins, [&](const char* begin) { return type.starts_with(begin); });
}

void check_draws_all(const char* op, const nn::ModuleBase& dropout, const std::string& name) {
  WEFT_CHECK(dropout.type_name() != "Dropout" || !dropout.shared_state().has_value(),
             InvalidArgument, op, name, " draws a part of a mask already");
}

Tensor own_parameter(const nn::ModuleBase& module, const std::string& name) {
  for (const auto& [of, x] : module.named_parameters(false)) {
    if (of == name) return x;
  }
  return {};
}

std::vector<PartLayer> layers_of(const nn::ModuleBase& module, const ParallelPlan& plan, int rank,
                                 int n) {
  const nn::NamedModules modules = module.named_modules();
  std::vector<PartLayer> layers;
  std::vector<std::pair<std::string, std::string>> named;  // paths, and the plan's entries
  for (const auto& [pattern, style] : plan) {
    const std::size_t before = named.size();
    for (const auto& [path, part] : modules) {
      if (!path_matches(pattern, path)) continue;
      for (const auto& [other, entry] : named) {
        WEFT_CHECK(path != other, InvalidArgument, kOp, "both '", entry, "' and '", pattern,
                   "' of the plan name the module ", path);
        WEFT_CHECK(!is_within(path, other) && !is_within(other, path), InvalidArgument, kOp,
                   "the plan's '", entry, "' and '", pattern, "' name '", other, "' and '", path,
                   "', of which one contains the other");
      }
      named.emplace_back(path, pattern);
      const std::string name = path.empty() ? part.type_name() : path;
      std::visit(MakeLayers{part, path, name, text_of(style), rank, n, layers}, style);
    }
    std::vector<std::string> names;
    for (const auto& [path, part] : modules) names.push_back(path);
    WEFT_CHECK(named.size() > before, InvalidArgument, kOp, "the plan's '", pattern,
               "' names no module of ", module.type_name(),
               "; there are: ", nn::detail::first_few({names.begin() + 1, names.end()}));
  }
  check_shared(modules, layers);
  return layers;
}

}  // namespace weft::parallel
