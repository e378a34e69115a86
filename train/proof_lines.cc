#include "weft/train/proof_lines.h"

#include <cxxabi.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <typeinfo>
#include <utility>

#include "weft/core/base/simd_level.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/train/digest.h"

namespace weft::train {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no others.
Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

std::vector<std::int64_t> sizes_of(const Tensor& x) { return {x.shape().begin(), x.shape().end()}; }

void add_digest(Json& line, const Tensor& x) {
  const Digest d = digest(x);
  line["shape"] = sizes_of(x);
  line["dtype"] = to_string(x.dtype());
  line["hash"] = hex(d.hash);
  line["sum"] = number(d.sum);
  line["l2"] = number(d.l2);
  line["max"] = number(d.max);
  for (const double sum : d.signs) line["signs"].push_back(number(sum));
  line["finite"] = d.not_finite == 0;
  if (d.not_finite != 0) line["not_finite"] = hex(d.not_finite);
}

// "SGD" for weft::parallel::DistributedOptimizer<weft::optim::SGD>, too.
std::string class_of(const optim::Optimizer& optimizer) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(typeid(optimizer).name(), nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? text.get() : typeid(optimizer).name();
  name = name.substr(0, name.find('>'));
  return name.substr(name.find_last_of(":<") + 1);
}

}  // namespace

std::string hex(std::uint64_t hash) {
  std::ostringstream text;
  text << std::hex;
  text.width(16);
  text.fill('0');
  text << hash;
  return text.str();
}

std::string hex_hash(std::string_view text) { return hex(hash_of(std::as_bytes(std::span(text)))); }

std::string hex_hash(const Tensor& x) { return hex(hash_of(x)); }

std::string to_line(const RunLine& run) {
  return Json({{"kind", "run"},
               {"program", run.program},
               {"dtype", to_string(run.dtype)},
               {"rank", run.rank},
               {"ranks", run.ranks},
               {"batches", run.batches},
               {"backend", run.backend},
               {"threads", num_threads()},
               {"deterministic", thread_state().deterministic},
               {"dataset_size", run.dataset_size},
               {"batch_size", run.batch_size},
               {"shuffle", run.shuffle},
               {"simd", reference_kernels_wanted() ? "reference" : to_string(simd_level())}})
      .dump();
}

std::string to_line(const BatchLine& batch) {
  Json line = {{"kind", "batch"},
               {"step", batch.step},
               {"epoch", batch.epoch},
               {"indices", batch.indices},
               {"generator", batch.generator}};
  if (batch.inputs) line["inputs"] = *batch.inputs;
  if (batch.saved) line["saved"] = *batch.saved;
  if (!batch.state.empty()) line["state"] = batch.state;
  return line.dump();
}

std::string module_line(const std::string& name, const std::string& type) {
  return Json({{"kind", "module"}, {"name", name}, {"type", type}}).dump();
}

std::string declared_line(const char* kind, const std::string& name, const Tensor& x, bool part) {
  Json line = {{"kind", kind}, {"name", name}, {"shape", sizes_of(x)}};
  if (line["kind"] == "parameter") line["requires_grad"] = x.requires_grad();
  if (part) line["part"] = true;
  return line.dump();
}

std::string optimizer_line(std::size_t number, const optim::Optimizer& optimizer,
                           const std::vector<std::string>& parameters) {
  return Json({{"kind", "optimizer"},
               {"optimizer", number},
               {"type", class_of(optimizer)},
               {"parameters", parameters}})
      .dump();
}

std::string output_line(std::int64_t step, const OutputPlace& place, const Tensor& x) {
  Json line = {{"kind", "output"},          {"step", step},       {"module", place.module},
               {"type", place.type},        {"call", place.call}, {"index", place.index},
               {"training", place.training}};
  add_digest(line, x);
  return line.dump();
}

std::string update_line(std::int64_t step, std::size_t event, std::size_t number,
                        const optim::Optimizer& optimizer) {
  Json groups = Json::array();
  for (std::size_t g = 0; g < optimizer.group_count(); ++g) {
    Json group = {{"lr", optimizer.lr(g)}, {"momentum", optimizer.momentum(g)}};
    for (const auto& [name, value] : optimizer.options(g)) group[name] = value;
    groups.push_back(std::move(group));
  }
  return Json({{"kind", "update"},
               {"step", step},
               {"event", event},
               {"optimizer", number},
               {"groups", groups}})
      .dump();
}

std::string gradient_line(std::int64_t step, std::size_t event, const std::string& name,
                          const Tensor& gradient, bool part) {
  Json line = {{"kind", "gradient"}, {"step", step}, {"event", event}, {"name", name}};
  if (gradient.defined()) {
    add_digest(line, gradient);
    if (part) line["part"] = true;
  } else {
    line["missing"] = true;
  }
  return line.dump();
}

std::string micro_batch_line(std::int64_t step, std::size_t event, std::int64_t number,
                             const std::string& name, const Tensor& gradient) {
  Json line = {
      {"kind", "micro_batch"}, {"step", step}, {"event", event}, {"call", number}, {"name", name}};
  add_digest(line, gradient);
  return line.dump();
}

std::string state_line(const char* kind, std::int64_t step, const std::string& name,
                       const Tensor& x, bool part) {
  Json line = {{"kind", kind}, {"step", step}, {"name", name}};
  add_digest(line, x);
  if (part) line["part"] = true;
  return line.dump();
}

std::string loss_line(std::int64_t step,
                      const std::vector<std::pair<std::string, double>>& values) {
  Json all = Json::object();
  for (const auto& [name, value] : values) all[name] = number(value);
  return Json({{"kind", "loss"}, {"step", step}, {"values", all}}).dump();
}

std::string end_line(std::int64_t step) { return Json({{"kind", "end"}, {"step", step}}).dump(); }

}  // namespace weft::train
