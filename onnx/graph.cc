#include "weft/onnx/graph.h"

#include <algorithm>
#include <functional>
#include <span>

#include "weft/core/base/error.h"
#include "weft/core/base/version.h"
#include "weft/core/runtime/file.h"
#include "weft/io/protobuf.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::onnx {
namespace {

using io::protobuf::field;
using io::protobuf::header;

// Field numbers and values of onnx/onnx.proto.
enum ModelProto { kIrVersion = 1, kProducer = 2, kProducerVersion = 3, kGraph = 7, kOpset = 8 };
enum OperatorSetId { kOpsetVersion = 2 };
enum GraphProto { kNode = 1, kGraphName = 2, kInitializer = 5, kInput = 11, kOutput = 12 };
enum NodeProto { kNodeInput = 1, kNodeOutput = 2, kNodeName = 3, kOpType = 4, kAttribute = 5 };
enum AttributeProto {
  kAttributeName = 1,
  kFloat = 2,
  kInt = 3,
  kString = 4,
  kInts = 8,
  kType = 20
};
enum AttributeType { kFloatType = 1, kIntType = 2, kStringType = 3, kIntsType = 7 };
enum TensorProto { kDims = 1, kDataType = 2, kTensorName = 8, kRawData = 9 };
enum ValueInfo { kValueName = 1, kValueType = 2, kTensorType = 1, kElementType = 1, kShape = 2 };
enum TensorShape { kDim = 1, kDimValue = 1, kDimParam = 2 };

constexpr std::int64_t kIrVersionOfOpset17 = 8, kOpset17 = 17;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 31;  // what protobuf's readers refuse

std::string attribute(const std::string& name, const Attribute& value) {
  std::string text = field(kAttributeName, name);
  const auto typed = [&](AttributeType type) {
    return field(kType, static_cast<std::int64_t>(type));
  };
  if (const auto* i = std::get_if<std::int64_t>(&value)) {
    text += field(kInt, *i) + typed(kIntType);
  } else if (const auto* d = std::get_if<double>(&value)) {
    text += field(kFloat, static_cast<float>(*d)) + typed(kFloatType);
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    text += field(kString, *s) + typed(kStringType);
  } else {
    for (const std::int64_t n : std::get<Ints>(value)) text += field(kInts, n);
    text += typed(kIntsType);
  }
  return text;
}

// A tensor without its bytes.
std::string head_of(const std::string& name, const Tensor& x) {
  std::string text;
  for (const std::int64_t size : x.shape()) text += field(kDims, size);
  return text + field(kDataType, onnx_type(x.dtype())) + field(kTensorName, name) +
         header(kRawData, static_cast<std::uint64_t>(x.numel()) * size_of(x.dtype()));
}

std::string_view bytes_of(const Tensor& x) {
  return {static_cast<const char*>(x.raw_data()),
          static_cast<std::size_t>(x.numel()) * size_of(x.dtype())};
}

Tensor on_host(const Tensor& x) { return raw::contiguous(raw::to(x, Device())); }

}  // namespace

std::int64_t onnx_type(DType dtype) {
  switch (dtype) {  // TensorProto.DataType
    case DType::f32: return 1;
    case DType::u8: return 2;
    case DType::i32: return 6;
    case DType::i64: return 7;
    case DType::boolean: return 9;
    case DType::f64: return 11;
    case DType::bf16: return 16;
  }
  return 0;
}

std::string Graph::unique(const std::string& name) {
  std::string free = name;
  for (int i = 2; !names_.insert(free).second; ++i) free = name + "_" + std::to_string(i);
  return free;
}

void Graph::add_input(const Value& x) {
  WEFT_CHECK(names_.insert(x.name).second, InvalidArgument, "onnx", "input_names: \"", x.name,
             "\" is taken by another input, a parameter or a buffer");
  inputs_.push_back(x);
}

void Graph::reserve(const std::string& name) { names_.insert(name); }

void Graph::add_output(const Value& x, const std::string& name) {
  WEFT_CHECK(names_.insert(name).second, InvalidArgument, "onnx", "output_names: \"", name,
             "\" is taken by an input, another output, a parameter or a buffer");
  outputs_.push_back({name, x.dtype, x.shape, x.other});
  nodes_.push_back({unique("/" + name), "Identity", {x.name}, {name}, {}});
}

std::vector<std::string> Graph::node(const std::string& path, const char* type,
                                     const std::vector<std::string>& inputs,
                                     const Attributes& attributes, int outputs) {
  const std::string name = unique(path + "/" + type);
  Node node{name, type, inputs, {}, attributes};
  for (int i = 0; i < outputs; ++i) node.outputs.push_back(unique(name + ":" + std::to_string(i)));
  nodes_.push_back(node);
  return node.outputs;
}

std::string Graph::initializer(const std::string& name, const Tensor& x) {
  const auto same = [&](const auto& known) { return known.first == name; };
  if (std::ranges::none_of(initializers_, same)) initializers_.emplace_back(name, on_host(x));
  return name;
}

std::string Graph::constant(const Tensor& x) {
  const Tensor host = on_host(x);
  const std::string head = head_of({}, host);
  const std::hash<std::string_view> hash;
  const std::size_t key = hash(head) ^ hash(bytes_of(host));
  const auto [first, last] = constants_.equal_range(key);
  for (auto at = first; at != last; ++at) {
    const auto& [name, known] = initializers_[at->second];
    if (head_of({}, known) == head && bytes_of(known) == bytes_of(host)) return name;
  }
  constants_.emplace(key, initializers_.size());
  return initializer(unique("/constant"), host);
}
std::string Graph::constant(const Ints& values) {
  return constant(from_vector(values, {std::ssize(values)}, Device()));
}
std::string Graph::constant(double value, DType dtype) {
  return constant(scalar(value, {dtype, Device()}));
}

std::int64_t Graph::batches_in(std::int64_t size, std::int64_t other) const {
  if (size == other) return 0;
  const auto [first, second] = batches_;
  const bool multiple = size % first == 0 && size / first * second == other;
  return multiple ? size / first : -1;
}

std::string Graph::shape(const Shape& shape, const Shape& other) {
  if (shape == other) return constant(Ints(shape.begin(), shape.end()));
  if (batch_.empty()) {
    const Attributes first_size{{"start", std::int64_t{0}}, {"end", std::int64_t{1}}};
    batch_ = node("/batch", "Shape", {inputs_.at(0).name}, first_size)[0];
  }
  std::vector<std::string> sizes;
  for (int i = 0; i < shape.size(); ++i) {
    const std::int64_t times = batches_in(shape[i], other[i]);
    if (times < 0) return {};
    sizes.push_back(times == 0   ? constant(Ints{shape[i]})
                    : times == 1 ? batch_
                                 : node("/batch", "Mul", {batch_, constant(Ints{times})})[0]);
  }
  return node("/batch", "Concat", sizes, {{"axis", std::int64_t{0}}})[0];
}

std::string Graph::value_info(const Value& x) const {
  std::string dims;
  for (int i = 0; i < x.dim(); ++i) {
    const std::int64_t times = batches_in(x.shape[i], x.other[i]);
    // Neither fixed nor a multiple of the batch: ONNX allows a size without a value or a name.
    const std::string size = times == 0   ? field(kDimValue, x.shape[i])
                             : times == 1 ? field(kDimParam, "batch")
                             : times > 1  ? field(kDimParam, std::to_string(times) + "*batch")
                                          : "";
    dims += field(kDim, size);
  }
  const std::string type = field(kElementType, onnx_type(x.dtype)) + field(kShape, dims);
  return field(kValueName, x.name) + field(kValueType, field(kTensorType, type));
}

void Graph::save(const std::string& path) const {
  std::string graph = field(kGraphName, "weft");
  for (const Node& node : nodes_) {
    std::string text;
    for (const std::string& input : node.inputs) text += field(kNodeInput, input);
    for (const std::string& output : node.outputs) text += field(kNodeOutput, output);
    text += field(kNodeName, node.name) + field(kOpType, node.type);
    for (const auto& [name, value] : node.attributes) {
      text += field(kAttribute, attribute(name, value));
    }
    graph += field(kNode, text);
  }
  for (const Value& x : inputs_) graph += field(kInput, value_info(x));
  for (const Value& x : outputs_) graph += field(kOutput, value_info(x));

  // The tensors come last and are not copied: they are nearly all of the file.
  std::vector<std::string> heads;
  std::uint64_t bytes = graph.size();
  for (const auto& [name, x] : initializers_) {
    const std::string head = head_of(name, x);
    heads.push_back(header(kInitializer, head.size() + bytes_of(x).size()) + head);
    bytes += heads.back().size() + bytes_of(x).size();
  }
  const std::string start = field(kIrVersion, kIrVersionOfOpset17) + field(kProducer, "weft") +
                            field(kProducerVersion, kVersion) +
                            field(kOpset, field(kOpsetVersion, kOpset17)) + header(kGraph, bytes);
  WEFT_CHECK(start.size() + bytes < kMostBytes, InvalidArgument, "onnx", path, ": the model needs ",
             bytes, " bytes, and a file of protocol buffers holds less than 2 GiB");
  AtomicFile file(path);
  file.write(start);
  file.write(graph);
  for (std::size_t i = 0; i < heads.size(); ++i) {
    file.write(heads[i]);
    file.write(bytes_of(initializers_[i].second));
  }
  file.commit();
}

}  // namespace weft::onnx
