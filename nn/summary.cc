#include "weft/nn/summary.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <unordered_set>

#include "weft/autograd/autograd.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/evaluation.h"
#include "weft/nn/module_node.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

namespace {

class Recording {
 public:
  void enter(const ModuleBase& module, std::span<const Tensor> inputs) {
    take_macs();
    Call call{.row = rows.size()};
    for (const Tensor& x : inputs) {
      if (x.defined()) call.inputs.push_back(x.storage().get());
    }
    SummaryRow row{.path = module_path(), .type = module.type_name()};
    bool any = false, fresh = false;
    const auto count = [&](const std::string&, const detail::ModuleNode::Entry& entry) {
      if (entry.is_buffer) return;
      any = true;
      if (!seen_.insert(entry.tensor.impl()).second) return;
      fresh = true;
      const std::int64_t numel = detail::ModuleNode::whole_numel(entry);
      row.parameters += numel;
      if (entry.tensor.requires_grad()) row.trainable += numel;
    };
    detail::ModuleNode::of(module).visit("", count, /*recurse=*/false);
    row.recursive = any && !fresh;
    rows.push_back(std::move(row));
    calls_.push_back(std::move(call));
  }

  void leave(std::span<const Tensor> outputs) {
    take_macs();
    const Call& call = calls_.back();
    const bool called_others = rows.size() > call.row + 1;
    SummaryRow& row = rows[call.row];
    std::vector<const Storage*> counted = call.inputs;  // views and in-place results use no memory
    for (const Tensor& y : outputs) {
      if (!y.defined()) continue;
      row.outputs.push_back(y.shape());
      const Storage* storage = y.storage().get();
      if (called_others || std::ranges::find(counted, storage) != counted.end()) continue;
      counted.push_back(storage);
      row.activation_bytes += y.numel() * size_of(y.dtype());
    }
    calls_.pop_back();
  }

  std::vector<SummaryRow> rows;
  std::int64_t macs = 0;  // since the last time a call began or ended

 private:
  struct Call {
    std::size_t row;
    std::vector<const Storage*> inputs = {};
  };

  // Counts them for the innermost call.
  void take_macs() {
    const std::int64_t count = std::exchange(macs, 0);
    if (!calls_.empty()) rows[calls_.back().row].macs += count;
  }

  std::vector<Call> calls_;
  std::unordered_set<const TensorImpl*> seen_;
};

std::string in_units(std::int64_t count, double unit, const char* name) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f %s", static_cast<double>(count) / unit, name);
  return text;
}

}  // namespace

namespace detail {

struct SummaryScope::Impl {
  explicit Impl(const ModuleBase& module) : model(module) {
    std::unordered_set<const std::any*> seen;  // a module may have two parents
    model.apply([&](ModuleBase& m) {
      if (seen.insert(&m.shared_state()).second) record(m);
    });
  }
  ~Impl() {
    for (HookHandle& hook : hooks) hook.remove();
  }

  void record(ModuleBase& module) {
    hooks.push_back(module.register_forward_pre_hook(
        [this](ModuleBase& m, std::span<Tensor> args) { recording.enter(m, args); }));
    hooks.push_back(module.register_forward_hook(
        [this](ModuleBase&, std::span<Tensor> results) { recording.leave(results); }));
  }

  ModuleBase model;
  EvaluationScope evaluation{model};
  std::vector<HookHandle> hooks;
  Recording recording;
  GeneratorSet generators;
  NoGrad no_grad;
  Scoped<GeneratorSet*> drawing{&ThreadState::generators, &generators};
  Scoped<const PathNode*> path{&ThreadState::path, nullptr};
  Scoped<std::int64_t*> multiply_adds{&ThreadState::multiply_adds, &recording.macs};
};

SummaryScope::SummaryScope(const ModuleBase& model) : impl_(std::make_unique<Impl>(model)) {}
SummaryScope::~SummaryScope() = default;

Tensor SummaryScope::input(const Shape& shape, std::optional<DType> dtype) const {
  TensorOptions options;
  for (const Tensor& p : impl_->model.parameters()) {
    if (!is_floating(p.dtype())) continue;
    options = {p.dtype(), p.device()};
    break;
  }
  if (dtype) options.dtype = *dtype;
  return zeros(shape, options);
}

Summary SummaryScope::result(const Tensor& input) const {
  Summary result{.input = input.shape(), .dtype = input.dtype(), .rows = impl_->recording.rows};
  std::unordered_set<const TensorImpl*> seen;
  ModuleNode::of(impl_->model).visit("", [&](const std::string&, const ModuleNode::Entry& entry) {
    if (entry.is_buffer || !seen.insert(entry.tensor.impl()).second) return;
    const std::int64_t numel = ModuleNode::whole_numel(entry);
    result.parameters += numel;
    result.parameter_bytes += numel * static_cast<std::int64_t>(size_of(entry.tensor.dtype()));
    if (entry.tensor.requires_grad()) result.trainable += numel;
  });
  for (const SummaryRow& row : result.rows) {
    result.macs += row.macs;
    result.activation_bytes += row.activation_bytes;
  }
  return result;
}

}  // namespace detail

std::string Summary::to_string() const {
  constexpr double kMiB = 1 << 20;
  constexpr std::size_t kColumns = 7, kTexts = 3;  // texts are aligned left, numbers right
  using Line = std::array<std::string, kColumns>;
  std::vector<Line> lines = {
      {"module", "type", "output", "parameters", "trainable", "MACs", "activation bytes"}};
  const auto count = [](std::int64_t n) { return n == 0 ? "-" : detail::with_commas(n); };
  for (const SummaryRow& row : rows) {
    std::string shapes;
    for (const Shape& shape : row.outputs)
      shapes += (shapes.empty() ? "" : " ") + weft::to_string(shape);
    lines.push_back({row.path.empty() ? "(model)" : row.path, row.type, shapes,
                     row.recursive ? "(recursive)" : count(row.parameters),
                     row.recursive ? "(recursive)" : count(row.trainable), count(row.macs),
                     count(row.activation_bytes)});
  }
  std::array<std::size_t, kColumns> widths{};
  for (const Line& line : lines) {
    for (std::size_t c = 0; c < kColumns; ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::size_t whole = 2 * (kColumns - 1);
  for (const std::size_t width : widths) whole += width;
  const std::string rule = std::string(whole, '-') + "\n";

  std::string text;
  for (const Line& line : lines) {
    for (std::size_t c = 0; c < kColumns; ++c) {
      const std::string gap(widths[c] - line[c].size(), ' ');
      text += (c ? "  " : "") + (c < kTexts ? line[c] + gap : gap + line[c]);
    }
    text += "\n";
    if (&line == &lines.front()) text += rule;
  }
  const auto total = [&](std::string name, const std::string& value) {
    name.resize(20, ' ');
    text += name + value + "\n";
  };
  text += rule;
  total("input", weft::to_string(input) + " " + weft::to_string(dtype));
  total("parameters",
        detail::with_commas(parameters) + " (" + in_units(parameter_bytes, kMiB, "MiB") + ")");
  total("  trainable", detail::with_commas(trainable));
  total("  frozen", detail::with_commas(frozen()));
  total("MACs", detail::with_commas(macs) + " (" + in_units(macs, 1e9, "GMAC") + ")");
  total("activations", in_units(activation_bytes, kMiB, "MiB"));
  return text;
}

}  // namespace weft::nn
