// Computes cases that come as data, for differential.py, which compares them with PyTorch's.
//
//   differential CASES BYTES RESULTS RESULT_BYTES [FIRST]
//   differential --operations                              names them, one a line
//
// CASES has one JSON object a line:
//   {"inputs": [{"dtype": "f32", "at": 64, "count": 6, "shape": [2, 3], "strides": [3, 1],
//                "offset": 0, "requires_grad": true}, ...],
//    "steps": [{"op": "sum", "in": [0], "dims": [1]}, ...],
//    "report": [1], "backward": {"of": 1, "gradient": {... as an input}}}
// "backward" may be a list, of the roots of one backward. "grads_of", if given, is the list of the
// tensors whose gradients are wanted in place of the inputs', as a module's parameters.
// An input is a view of `count` elements that lie in BYTES from byte `at`. The tensors of a case
// are its inputs and then what the steps give, in order; -1 in "in" is an undefined tensor. After
// the steps and the backward, where there is one, the case's line in RESULTS says what came out:
//   {"tensors": [{"dtype": "f32", "shape": [2], "at": 0, "requires_grad": true}, ...],
//    "grads": [{...} or null for each input that requires one, ...]}
//   {"error": "Shape", "text": "[sum] ...", "phase": "forward"}
// with the values, row by row, in RESULT_BYTES. Each line is written before the next case starts,
// so the program ended in the first case without one; the next run begins after it, with FIRST.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/tests/peers/calls.h"

namespace weft::peers {
namespace {

using nlohmann::json;

Operations all_operations() {
  Operations table;
  add_elementwise(table);
  add_tensor(table);
  add_layers(table);
  add_training(table);
  add_modules(table);
  return table;
}

class Runner {
 public:
  Runner(const char* bytes, const char* results, const char* result_bytes)
      : lines_(results, std::ios::app), values_(result_bytes, std::ios::binary | std::ios::app) {
    std::ifstream in(bytes, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    values_.seekp(0, std::ios::end);
    at_ = values_.tellp();
  }

  void run(const json& one) {
    const std::string answer = result_of(one).dump(-1, ' ', true, json::error_handler_t::replace);
    values_.flush();
    lines_ << answer << std::endl;
    WEFT_CHECK(values_ && lines_, Io, "differential", "cannot write the results");
  }

 private:
  json result_of(const json& one) {
    const char* phase = "inputs";
    try {
      std::vector<Tensor> tensors;
      for (const json& input : one.at("inputs")) tensors.push_back(make_input(input));
      phase = "forward";
      for (const json& step : one.at("steps")) {
        std::vector<Tensor> operands;
        for (const int i : step.at("in")) operands.push_back(i < 0 ? Tensor() : tensors.at(i));
        const std::string name = step.at("op");
        const auto operation = operations_.find(name);
        if (operation == operations_.end()) throw std::runtime_error("no operation " + name);
        for (Tensor& y : operation->second(Call(step, operands))) tensors.push_back(std::move(y));
      }
      phase = "backward";
      if (one.contains("backward")) go_back(one["backward"], tensors);
      phase = "report";
      json answer = {{"tensors", json::array()}, {"grads", json::array()}};
      for (const int i : one.at("report")) answer["tensors"].push_back(describe(tensors.at(i)));
      for (const std::size_t i : leaves(one)) {
        const Tensor grad = tensors.at(i).grad();
        answer["grads"].push_back(grad.defined() ? describe(grad) : json());
      }
      return answer;
    } catch (const Error& error) {
      return {{"error", to_string(error.code())}, {"text", error.what()}, {"phase", phase}};
    } catch (const std::exception& error) {
      return {{"error", "untyped"}, {"text", error.what()}, {"phase", phase}};
    }
  }

  void go_back(const json& backward, std::span<const Tensor> tensors) {
    std::vector<Tensor> roots, gradients;
    for (const json& root : backward.is_array() ? backward : json::array({backward})) {
      roots.push_back(tensors[root.at("of").get<std::size_t>()]);
      gradients.push_back(make_input(root.at("gradient")));
    }
    autograd::backward(roots, gradients);
  }

  /// The tensors whose gradients the answer has.
  static std::vector<std::size_t> leaves(const json& one) {
    if (one.contains("grads_of")) return one["grads_of"].get<std::vector<std::size_t>>();
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < one["inputs"].size(); ++i) {
      if (one["inputs"][i].value("requires_grad", false)) found.push_back(i);
    }
    return found;
  }

  Tensor make_input(const json& input) {
    const auto dims = [&](const char* name) {
      return Dims(std::span<const std::int64_t>(input.at(name).get<std::vector<std::int64_t>>()));
    };
    const DType dtype = parse_dtype(input.at("dtype").get<std::string>());
    const std::int64_t count = input.at("count");
    const Tensor memory = empty({count}, dtype);
    if (count > 0) {
      std::memcpy(memory.raw_data(), bytes_.data() + input.at("at").get<std::int64_t>(),
                  count * size_of(dtype));
    }
    Tensor x = as_strided(memory.storage(), dtype, dims("shape"), dims("strides"),
                          input.at("offset").get<std::int64_t>());
    if (input.value("requires_grad", false)) x.set_requires_grad();
    return x;
  }

  json describe(const Tensor& x) {
    json answer = {{"dtype", to_string(x.dtype())},
                   {"shape", json::array()},
                   {"at", at_},
                   {"requires_grad", x.requires_grad()}};
    for (const std::int64_t size : x.shape()) answer["shape"].push_back(size);
    const Tensor rows = raw::contiguous(x);
    const std::int64_t bytes = rows.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
    if (bytes > 0) values_.write(static_cast<const char*>(rows.raw_data()), bytes);
    at_ += bytes;
    return answer;
  }

  const Operations operations_ = all_operations();
  std::vector<char> bytes_;
  std::ofstream lines_, values_;
  std::int64_t at_ = 0;
};

}  // namespace
}  // namespace weft::peers

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--operations") {
    for (const auto& [name, operation] : weft::peers::all_operations()) std::cout << name << '\n';
    return 0;
  }
  if (argc < 5) {
    std::cerr << "usage: differential CASES BYTES RESULTS RESULT_BYTES [FIRST] | --operations\n";
    return 2;
  }
  std::ifstream cases(argv[1]);
  weft::peers::Runner runner(argv[2], argv[3], argv[4]);
  int skip = argc > 5 ? std::atoi(argv[5]) : 0;
  for (std::string line; std::getline(cases, line);) {
    if (skip-- > 0) continue;
    runner.run(nlohmann::json::parse(line));
  }
  return 0;
}
