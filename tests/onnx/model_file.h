// What is in an ONNX file, as text to compare.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weft/tests/io/files.h"
#include "weft/tests/io/protobuf.h"

namespace weft::testing {

/// The file's parts by the field numbers of onnx/onnx.proto.
struct ModelFile {
  explicit ModelFile(const std::string& path) {
    using protobuf::fields;
    using protobuf::number;
    const auto model = fields(read_file(path));
    ir_version = number<std::int64_t>(model.find(1)->second);
    opset = number<std::int64_t>(fields(model.find(8)->second).find(2)->second);
    const auto graph = fields(model.find(7)->second);
    for (const auto& [part, bytes] : graph) {
      if (part == 2) continue;  // its name
      const auto all = fields(bytes);
      if (part == 1) nodes.push_back(node(all));
      if (part == 5) {
        const auto raw = all.find(9);
        tensors[all.find(8)->second] = raw == all.end() ? "" : raw->second;
      }
      if (part == 11) inputs.push_back(value(all));
      if (part == 12) outputs.push_back(value(all));
    }
  }

  std::int64_t ir_version = 0, opset = 0;
  /// "Gemm(x, 0.weight, 0.bias) transB=1", with "%0", "%1" .. for the results of nodes.
  std::vector<std::string> nodes;
  /// "input 1 [batch,4]": name, dtype and shape.
  std::vector<std::string> inputs, outputs;
  std::map<std::string, std::string> tensors;  ///< initializers: their bytes

 private:
  using Fields = std::multimap<int, std::string>;

  std::string node(const Fields& all) {
    std::string text = all.find(4)->second + "(";
    const auto [first, last] = all.equal_range(1);
    for (auto input = first; input != last; ++input) {
      const auto result = results_.find(input->second);
      text += (input == first ? "" : ", ") +
              (result == results_.end() ? input->second : "%" + std::to_string(result->second));
    }
    text += ")";
    const auto [attribute, end] = all.equal_range(5);
    for (auto at = attribute; at != end; ++at) text += " " + attribute_text(at->second);
    const auto [output, no_more] = all.equal_range(2);
    for (auto at = output; at != no_more; ++at) {
      results_.emplace(at->second, static_cast<int>(results_.size()));
    }
    return text;
  }

  static std::string attribute_text(const std::string& bytes) {
    using protobuf::number;
    const auto all = protobuf::fields(bytes);
    std::string text = all.find(1)->second + "=";
    for (const auto& [part, value] : all) {
      if (part == 2) text += std::to_string(number<float>(value));
      if (part == 3) text += std::to_string(number<std::int64_t>(value));
      if (part == 4) text += value;
      if (part == 8) text += std::to_string(number<std::int64_t>(value)) + ",";
    }
    return text;
  }

  static std::string value(const Fields& all) {
    using protobuf::fields;
    using protobuf::number;
    const auto type = fields(fields(all.find(2)->second).find(1)->second);
    std::string dims;
    const auto shape = fields(type.find(2)->second);
    for (const auto& [part, bytes] : shape) {
      const auto dim = fields(bytes);
      const auto size = dim.find(1), symbol = dim.find(2);
      dims += (dims.empty() ? "" : ",") + (size != dim.end()
                                               ? std::to_string(number<std::int64_t>(size->second))
                                           : symbol != dim.end() ? symbol->second
                                                                 : "?");
    }
    return all.find(1)->second + " " + std::to_string(number<std::int64_t>(type.find(1)->second)) +
           " [" + dims + "]";
  }

  std::map<std::string, int> results_;  // numbers of the results, by their names
};

}  // namespace weft::testing
