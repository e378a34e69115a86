// Compares the tensors of two files of weights, safetensors or PyTorch's, or the losses of two
// metrics.json: `./weft compare A B --max 1e-9`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/io/state_dict.h"
#include "weft/tensor/creation.h"
#include "weft/tools/json_file.h"
#include "weft/tools/usage.h"

namespace weft {
namespace {

struct Difference {
  double value = -1;  // of the element with the largest difference
  std::string name;
  std::int64_t index = 0;  // row-major
  std::string first, second;
};

double difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double d = std::abs(a - b);
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

// Of large integers f64 has not all: neighbours would be the same there.
double difference(std::int64_t a, std::int64_t b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  return static_cast<double>(a > b ? x - y : y - x);
}

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string shown(std::int64_t value) { return std::to_string(value); }

template <class T>
void compare_as(const std::string& name, const Tensor& a, const Tensor& b, Difference& worst) {
  const std::vector<T> x = a.to_vector<T>(), y = b.to_vector<T>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = difference(x[i], y[i]);
    if (d > worst.value) worst = {d, name, static_cast<std::int64_t>(i), shown(x[i]), shown(y[i])};
  }
}

void compare(const std::string& name, const Tensor& a, const Tensor& b, Difference& worst) {
  a.dtype() == DType::i64 ? compare_as<std::int64_t>(name, a, b, worst)
                          : compare_as<double>(name, a, b, worst);
}

// Why the two cannot be compared number by number; empty if they can.
std::string mismatch(const std::map<std::string, Tensor>& a,
                     const std::map<std::string, Tensor>& b) {
  for (const auto& [name, x] : a) {
    const auto found = b.find(name);
    if (found == b.end()) return name + " is only in the first";
    const Tensor& y = found->second;
    if (x.shape() != y.shape() || x.dtype() != y.dtype()) {
      return detail::concat(name, " is ", x.dtype(), ' ', x.shape(), " in the first, ", y.dtype(),
                            ' ', y.shape(), " in the second");
    }
  }
  for (const auto& [name, y] : b) {
    if (!a.contains(name)) return name + " is only in the second";
  }
  return {};
}

// An index of files of weights is none.
bool is_metrics(const std::string& path) {
  return path.ends_with(".json") && !path.ends_with(".index.json");
}

// The losses of a metrics.json, which has null for what is not finite.
std::map<std::string, Tensor> losses(const std::string& path) {
  constexpr const char* kWhat = "no metrics.json that a program of weft wrote";
  return tools::read_json(path, "compare", kWhat, [](const nlohmann::json& metrics) {
    std::map<std::string, Tensor> found;
    const auto add = [&](const std::string& name, const nlohmann::json& list) {
      std::vector<double> values;
      for (const nlohmann::json& loss : list.get_ref<const nlohmann::json::array_t&>()) {
        values.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                        : loss.get<double>());
      }
      const auto steps = static_cast<std::int64_t>(values.size());
      found.emplace(name, from_vector(values, {steps}));
    };
    const nlohmann::json& all = metrics.at("losses");
    if (all.is_object()) {
      for (const auto& [name, list] : all.items()) add(name, list);
    } else {
      add("losses", all);
    }
    return found;
  });
}

std::map<std::string, Tensor> read(const std::string& path) {
  if (is_metrics(path)) return losses(path);
  const io::NamedTensors tensors = io::load_state_dict(path);
  return {tensors.begin(), tensors.end()};
}

int run(const std::string& first, const std::string& second, double most) {
  WEFT_CHECK(is_metrics(first) == is_metrics(second), InvalidArgument, "compare",
             "one of the two is a metrics.json, the other one is not");
  const std::map<std::string, Tensor> tensors[2] = {read(first), read(second)};
  if (const std::string reason = mismatch(tensors[0], tensors[1]); !reason.empty()) {
    std::printf("different: %s\n", reason.c_str());
    return 1;
  }
  Difference worst;
  for (const auto& [name, x] : tensors[0]) compare(name, x, tensors[1].at(name), worst);
  const bool same = !(worst.value > most);
  std::int64_t count = 0;
  for (const auto& [name, x] : tensors[0]) count += is_metrics(first) ? x.numel() : 1;
  std::printf("%s: %lld %s", same ? "same" : "different", static_cast<long long>(count),
              is_metrics(first) ? "losses" : "tensors");
  if (worst.value > 0) {
    std::printf(", the largest difference %.3g in %s, element %ld: %s and %s", worst.value,
                worst.name.c_str(), static_cast<long>(worst.index), worst.first.c_str(),
                worst.second.c_str());
  }
  std::printf(" (allowed %g)\n", most);
  return same ? 0 : 1;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  CLI::App app("Compares the tensors of two files, by name, or the losses of two metrics.json.",
               "compare");
  std::string first, second;
  double most = 0;
  app.add_option("A", first,
                 "a file of weights, safetensors or PyTorch's (FILE or FILE:KEY), an index of "
                 "several (FILE.index.json), or the metrics.json of a run")
      ->required();
  app.add_option("B", second, "another one")->required();
  app.add_option("--max", most, "the largest difference that is allowed; 0: none")
      ->check(weft::tools::number_from(0));
  app.footer("Exit status: 0 the same, 1 different, 2 wrong usage or a file that cannot be read.");
  const auto run = [&]() -> int {
    try {
      app.parse(argc, argv);
      return weft::run(first, second, most);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "compare: error: %s\n", error.what());
      return 2;
    }
  };
  return weft::tools::exit_status(app, run());
}
