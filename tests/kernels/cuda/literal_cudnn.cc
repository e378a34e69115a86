// Takes the place of cuDNN: computes a graph of products, reductions and element-wise operations as
// its descriptors say, one operation after the other, in host memory. Numbers are rounded to the
// type of each tensor.
#include <cudnn.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

namespace {

struct Descriptor;
using Ref = std::shared_ptr<Descriptor>;
using Index = std::int64_t[4];

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<char>> values;
  std::map<int, std::vector<Ref>> descriptors;

  template <class T>
  std::vector<T> all(int name) const {
    const std::vector<char>& bytes = values.at(name);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  template <class T>
  T one(int name) const {
    return all<T>(name).at(0);
  }
  bool says(int name) const { return values.contains(name) && values.at(name).at(0) != 0; }
  const Descriptor& of(int name) const { return *descriptors.at(name).at(0); }
};

Ref& ref_of(cudnnBackendDescriptor_t d) { return *static_cast<Ref*>(d); }

std::size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE: return 8;
    default: return 4;
  }
}

float rounded_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return value;
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000U);
}

/// A tensor of the graph: its elements, in memory or not, by its dimensions.
class Tensor {
 public:
  explicit Tensor(const Descriptor& d)
      : id(d.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        dim(d.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        stride(d.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
        is_virtual(d.says(CUDNN_ATTR_TENSOR_IS_VIRTUAL)),
        type_(d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)) {}

  std::int64_t offset(const Index& i) const {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < 4; ++d) at += (dim[d] == 1 ? 0 : i[d]) * stride[d];
    return at;
  }
  double load(const void* p, std::int64_t at) const {
    if (type_ != CUDNN_DATA_BFLOAT16) return static_cast<const float*>(p)[at];
    return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(p)[at]} << 16);
  }
  void store(void* p, std::int64_t at, double value) const {
    const auto stored = static_cast<float>(rounded(value));
    if (type_ != CUDNN_DATA_BFLOAT16) {
      static_cast<float*>(p)[at] = stored;
    } else {
      static_cast<std::uint16_t*>(p)[at] =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(stored) >> 16);
    }
  }
  double rounded(double value) const {
    const auto number = static_cast<float>(value);
    return type_ == CUDNN_DATA_BFLOAT16 ? rounded_to_bf16(number) : number;
  }

  std::int64_t id;
  std::vector<std::int64_t> dim, stride;
  bool is_virtual;

 private:
  cudnnDataType_t type_;
};

void for_each(const std::vector<std::int64_t>& dim, const std::function<void(const Index&)>& f) {
  Index i = {};
  for (i[0] = 0; i[0] < dim[0]; ++i[0])
    for (i[1] = 0; i[1] < dim[1]; ++i[1])
      for (i[2] = 0; i[2] < dim[2]; ++i[2])
        for (i[3] = 0; i[3] < dim[3]; ++i[3]) f(i);
}

double pointwise(cudnnPointwiseMode_t mode, double x, double b, bool chosen) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return std::exp(x);
    case CUDNN_POINTWISE_LOG: return std::log(x);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return chosen ? x : b;
    default: std::abort();
  }
}

class Run {
 public:
  explicit Run(const Descriptor& pack) {
    const auto ids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto addresses = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (std::size_t i = 0; i < ids.size(); ++i) stored_[ids[i]] = addresses[i];
  }

  void operation(const Descriptor& d) {
    switch (d.type) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return multiply(d);
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return reduce(d);
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return reshape(d);
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return each(d);
      default: std::abort();
    }
  }

 private:
  double get(const Tensor& t, const Index& i) { return at(t, t.offset(i)); }
  double at(const Tensor& t, std::int64_t offset) {
    return t.is_virtual ? inner_.at(t.id).at(offset) : t.load(stored_.at(t.id), offset);
  }
  void put(const Tensor& t, const Index& i, double value) {
    if (t.is_virtual) {
      inner_[t.id][t.offset(i)] = t.rounded(value);
    } else {
      t.store(stored_.at(t.id), t.offset(i), value);
    }
  }

  void multiply(const Descriptor& d) {
    const Tensor a(d.of(CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
        b(d.of(CUDNN_ATTR_OPERATION_MATMUL_BDESC)), c(d.of(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    for_each(c.dim, [&](const Index& i) {
      double sum = 0;
      for (std::int64_t k = 0; k < a.dim[3]; ++k) {
        sum += get(a, {i[0], i[1], i[2], k}) * get(b, {i[0], i[1], k, i[3]});
      }
      put(c, i, sum);
    });
  }
  void reduce(const Descriptor& d) {
    const Tensor x(d.of(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
        y(d.of(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    const bool adds =
        d.of(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
            .one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_ADD;
    for_each(y.dim, [&](const Index& i) {
      double all = adds ? 0 : -std::numeric_limits<double>::infinity();
      for (std::int64_t k = 0; k < x.dim[3]; ++k) {
        const double value = get(x, {i[0], i[1], i[2], k});
        all = adds ? all + value : std::max(all, value);
      }
      put(y, i, all);
    });
  }
  /// The same memory, in other dimensions.
  void reshape(const Descriptor& d) {
    const Tensor x(d.of(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)),
        y(d.of(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    for_each(y.dim, [&](const Index& i) { put(y, i, at(x, y.offset(i))); });
  }
  void each(const Descriptor& d) {
    const Descriptor& function = d.of(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = function.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const Tensor x(d.of(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)),
        y(d.of(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    const auto other = [&](int name, const Index& i) {
      return d.descriptors.contains(name) ? get(Tensor(d.of(name)), i) : 0;
    };
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
      const auto axis = function.one<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
      return for_each(y.dim, [&](const Index& i) { put(y, i, double(i[axis])); });
    }
    for_each(y.dim, [&](const Index& i) {
      put(y, i,
          pointwise(mode, get(x, i), other(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, i),
                    other(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, i) != 0));
    });
  }

  std::map<std::int64_t, void*> stored_;
  std::map<std::int64_t, std::map<std::int64_t, double>> inner_;
};

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "an error"; }
void cudnnGetLastErrorString(char* text, std::size_t) { *text = 0; }

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* d) {
  *d = new Ref(std::make_shared<Descriptor>(Descriptor{type, {}, {}}));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete &ref_of(d);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    std::vector<Ref>& refs = ref_of(d)->descriptors[name];
    for (std::int64_t i = 0; i < count; ++i) {
      refs.push_back(ref_of(static_cast<const cudnnBackendDescriptor_t*>(values)[i]));
    }
  } else {
    const char* const bytes = static_cast<const char*>(values);
    ref_of(d)->values[name].assign(bytes, bytes + std::size_t(count) * size_of(type));
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

/// One configuration, which needs no workspace and is the graph itself.
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, std::int64_t,
                                       std::int64_t* count, void* values) {
  *count = 1;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      ref_of(*static_cast<cudnnBackendDescriptor_t*>(values))->descriptors = ref_of(d)->descriptors;
      break;
    case CUDNN_ATTR_ENGINECFG_ENGINE: break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: *static_cast<std::int64_t*>(values) = 0; break;
    default: *count = 0;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const Descriptor& graph = ref_of(plan)
                                ->of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                                .of(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  Run run(*ref_of(pack));
  for (const Ref& operation : graph.descriptors.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    run.operation(*operation);
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
