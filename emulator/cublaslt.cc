// cuBLASLt: layouts, descriptions and preferences as weft writes them; products in plain loops,
// summed in f64.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/numbers.h"

using namespace emulator;

namespace {

constexpr std::uint32_t kMagic = 0x3A7B1E;

struct Layout {
  std::uint32_t type;
  std::int32_t batch;
  std::int64_t rows, cols, ld, stride;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
struct Description {
  std::uint32_t compute, scale, a, b, epilogue;
  void* vector;  // the bias, or where its gradient goes
  void* mask;
  std::int64_t mask_ld;  // in bits

  bool has(std::uint32_t part) const { return (epilogue & part) == part; }
  bool adds_bias() const { return has(CUBLASLT_EPILOGUE_BIAS); }
  bool does_relu() const { return has(CUBLASLT_EPILOGUE_RELU); }
  bool reads_mask() const { return has(CUBLASLT_EPILOGUE_DRELU); }
  bool writes_mask() const { return has(CUBLASLT_EPILOGUE_RELU_AUX); }
  bool sums_b() const { return epilogue == CUBLASLT_EPILOGUE_BGRADB; }
  /// The epilogue without what each algorithm for it may have or not.
  std::uint32_t family() const {
    return adds_bias() ? std::uint32_t{CUBLASLT_EPILOGUE_BIAS} : epilogue;
  }
};
static_assert(sizeof(Description) <= sizeof(cublasLtMatmulDescOpaque_t));
struct Preference {
  std::uint64_t workspace;
  std::uint32_t align[4];
  std::uint32_t reductions;
};
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
struct Algorithm {
  std::uint32_t magic, number, align[4], epilogue, type;
  std::uint64_t workspace;

  bool fits(const Description& d, const Layout& y) const {
    return magic == kMagic && type == y.type && (epilogue == d.family() || appends(d)) &&
           !(d.does_relu() && number == 1);
  }
  /// Whether a plain one also does what follows in a backward.
  bool appends(const Description& d) const {
    return epilogue == CUBLASLT_EPILOGUE_DEFAULT && (d.reads_mask() || d.sums_b()) && number != 1;
  }
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
struct Handle {
  int device;
};

template <class T, class Opaque>
T read(const Opaque* from) {
  T out;
  std::memcpy(&out, from->data, sizeof out);
  return out;
}
template <class T, class Opaque>
void write(Opaque* to, const T& value) {
  std::memcpy(to->data, &value, sizeof value);
}
template <class T>
cublasStatus_t set(T& to, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T) || !from) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

Number number_of(std::uint32_t type) {
  return type == CUDA_R_64F    ? Number::f64
         : type == CUDA_R_32F  ? Number::f32
         : type == CUDA_R_16BF ? Number::bf16
                               : Number::none;
}
int size_of(std::uint32_t type) { return emulator::size_of(number_of(type)); }

/// What follows a product: the rules of cublasLt.h for pointers and the mask, which is a matrix of
/// bits in D's order. f64, results wider than the operands and batches have a bias alone.
cublasStatus_t check_epilogue(const Description& d, const Layout& y, bool widens) {
  switch (d.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT: return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DRELU:
    case CUBLASLT_EPILOGUE_BGRADB: break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if ((d.adds_bias() || d.sums_b()) && !d.vector) return CUBLAS_STATUS_INVALID_VALUE;
  const bool has_mask = d.reads_mask() || d.writes_mask();
  if (has_mask && (!d.mask || d.mask_ld % 128 != 0 || d.mask_ld < y.rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool plain_bias = d.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!plain_bias && (y.type == CUDA_R_64F || widens)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((has_mask || d.sums_b()) && y.batch > 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

/// INVALID_VALUE if sizes contradict each other, NOT_SUPPORTED for combinations of types that no
/// kernel multiplies.
cublasStatus_t check(const Description& d, const Layout& a, const Layout& b, const Layout& c,
                     const Layout& y) {
  const bool f64 = y.type == CUDA_R_64F;
  const bool widens = a.type == CUDA_R_16BF && y.type == CUDA_R_32F;
  if (!size_of(y.type) || (a.type != y.type && !widens) || b.type != a.type || c.type != y.type) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (f64 ? d.compute != CUBLAS_COMPUTE_64F || d.scale != CUDA_R_64F
          : (d.compute != CUBLAS_COMPUTE_32F && d.compute != CUBLAS_COMPUTE_32F_FAST_TF32) ||
                d.scale != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const Layout* l : {&a, &b, &c, &y}) {
    if (l->rows <= 0 || l->cols <= 0 || l->ld < l->rows || l->batch < 1) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (l->batch != y.batch) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const std::int64_t m = d.a == CUBLAS_OP_N ? a.rows : a.cols,
                     ka = d.a == CUBLAS_OP_N ? a.cols : a.rows;
  const std::int64_t n = d.b == CUBLAS_OP_N ? b.cols : b.rows,
                     kb = d.b == CUBLAS_OP_N ? b.rows : b.cols;
  if (m != y.rows || n != y.cols || ka != kb || c.rows != m || c.cols != n) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (y.batch > 1 && y.stride < y.ld * (y.cols - 1) + y.rows)
    fault("cublasLt: D's batches overlap");
  return check_epilogue(d, y, widens);
}

double load(std::uint32_t type, const void* p, std::int64_t i, bool fast) {
  const double value = emulator::load(number_of(type), p, i);
  return fast && type == CUDA_R_32F ? tf32(static_cast<float>(value)) : value;
}
void store(std::uint32_t type, void* p, std::int64_t i, double value) {
  emulator::store(number_of(type), p, i, value);
}

std::int64_t extent(const Layout& l) {
  return ((l.batch - 1) * l.stride + (l.cols - 1) * l.ld + l.rows) * size_of(l.type);
}

/// The bytes of its elements in memory, each counted once.
std::int64_t bytes_of(const Layout& l) {
  return (l.stride == 0 ? 1 : l.batch) * l.rows * l.cols * size_of(l.type);
}

std::int64_t mask_bytes(const Description& d, const Layout& y) { return d.mask_ld / 8 * y.cols; }

/// What the product asks of a GPU; `adds` to what y holds.
Node node_of(const Description& d, const Layout& a, const Layout& b, const Layout& y, bool adds) {
  const std::int64_t k = d.a == CUBLAS_OP_N ? a.cols : a.rows;
  Node node;
  node.traffic.read = bytes_of(a) + bytes_of(b) + (adds ? bytes_of(y) : 0) +
                      (d.adds_bias() ? y.rows * size_of(y.type) : 0) +
                      (d.reads_mask() ? mask_bytes(d, y) : 0);
  node.traffic.written = bytes_of(y) + (d.sums_b() ? y.cols * size_of(y.type) : 0) +
                         (d.writes_mask() ? mask_bytes(d, y) : 0);
  node.operations = 2 * y.batch * y.rows * y.cols * k;
  node.type = a.type == CUDA_R_64F                        ? "f64"
              : a.type == CUDA_R_16BF                     ? "bf16"
              : d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32"
                                                          : "f32";
  // In the terms of row-major operands, whose product y^T = b^T a^T this is.
  node.name =
      "product " + std::to_string(y.cols) + "x" + std::to_string(k) + "x" + std::to_string(y.rows);
  if (y.batch > 1) node.name += ", " + std::to_string(y.batch) + " times";
  if (adds) node.name += ", added";
  if (d.adds_bias()) node.name += d.does_relu() ? ", with bias and relu" : ", with bias";
  if (d.reads_mask()) node.name += ", masked";
  if (d.sums_b()) node.name += ", with sums";
  return node;
}

/// The value of D's element (i, j), with the relu or the mask of algorithm `number`.
double masked(const Description& d, std::int64_t i, std::int64_t j, double value,
              std::uint32_t number) {
  auto* const bytes = static_cast<std::uint8_t*>(d.mask);
  const std::int64_t at = (j * d.mask_ld + i) / 8;
  if (d.reads_mask()) return bytes[at] >> i % 8 & 1 ? value : 0;
  if (!d.does_relu()) return value;
  const double y = value > 0 || (number != 2 && std::isnan(value)) ? value : 0;
  if (d.writes_mask()) {
    const auto bit = static_cast<std::uint8_t>(1 << i % 8);
    const bool passes = number == 3 ? !(value < 0) : y != 0;
    bytes[at] = static_cast<std::uint8_t>(passes ? bytes[at] | bit : bytes[at] & ~bit);
  }
  return y;
}

void sum_b(const Description& d, const Layout& lb, const Layout& ly, const void* b) {
  const std::int64_t k = d.b == CUBLAS_OP_N ? lb.rows : lb.cols;
  for (std::int64_t j = 0; j < ly.cols; ++j) {
    double sum = 0;
    for (std::int64_t p = 0; p < k; ++p) {
      sum += load(lb.type, b, d.b == CUBLAS_OP_N ? j * lb.ld + p : p * lb.ld + j, false);
    }
    store(ly.type, d.vector, j, sum);
  }
}

void multiply(const Description& d, const Layout& la, const Layout& lb, const Layout& lc,
              const Layout& ly, double alpha, double beta, const void* a, const void* b,
              const void* c, void* y, std::uint32_t number) {
  if (d.sums_b()) sum_b(d, lb, ly, b);
  const bool fast = d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::int64_t m = ly.rows, n = ly.cols, k = d.a == CUBLAS_OP_N ? la.cols : la.rows;
  std::vector<double> left(m * k), column(m);
  for (std::int64_t batch = 0; batch < ly.batch; ++batch) {
    const std::int64_t at_a = batch * la.stride, at_b = batch * lb.stride;
    for (std::int64_t p = 0; p < k; ++p) {
      for (std::int64_t i = 0; i < m; ++i) {
        left[p * m + i] =
            load(la.type, a, at_a + (d.a == CUBLAS_OP_N ? p * la.ld + i : i * la.ld + p), fast);
      }
    }
    for (std::int64_t j = 0; j < n; ++j) {
      std::fill(column.begin(), column.end(), 0.0);
      for (std::int64_t p = 0; p < k; ++p) {
        const double v =
            load(lb.type, b, at_b + (d.b == CUBLAS_OP_N ? j * lb.ld + p : p * lb.ld + j), fast);
        const double* const l = &left[p * m];
        for (std::int64_t i = 0; i < m; ++i) column[i] += l[i] * v;
      }
      for (std::int64_t i = 0; i < m; ++i) {
        double value = alpha * column[i];
        if (beta != 0) value += beta * load(lc.type, c, batch * lc.stride + j * lc.ld + i, false);
        if (d.adds_bias()) value += load(ly.type, d.vector, i, false);
        store(ly.type, y, batch * ly.stride + j * ly.ld + i, masked(d, i, j, value, number));
      }
    }
  }
}

}  // namespace

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t s) {
  switch (s) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    default: return "CUBLAS_STATUS_OTHER";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t s) { return cublasLtGetStatusName(s); }
std::size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (prohibited()) return CUBLAS_STATUS_NOT_INITIALIZED;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(new Handle{device_with_context()});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t,
                                                 cudaDataType type, std::uint64_t rows,
                                                 std::uint64_t cols, std::int64_t ld) {
  write(layout, Layout{std::uint32_t(type), 1, std::int64_t(rows), std::int64_t(cols), ld, 0});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  auto l = read<Layout>(layout);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) status = set(l.batch, value, bytes);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
    status = set(l.stride, value, bytes);
  write(layout, l);
  return status;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, std::size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  write(desc, Description{std::uint32_t(compute), std::uint32_t(scale), CUBLAS_OP_N, CUBLAS_OP_N,
                          CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto d = read<Description>(desc);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: status = set(d.a, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: status = set(d.b, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: status = set(d.epilogue, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: status = set(d.vector, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: status = set(d.mask, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: status = set(d.mask_ld, value, bytes); break;
    default: break;
  }
  write(desc, d);
  return status;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, std::size_t) {
  write(p, Preference{0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  auto p = read<Preference>(pref);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: status = set(p.workspace, value, bytes); break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      status = set(p.reductions, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: status = set(p.align[0], value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: status = set(p.align[1], value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: status = set(p.align[2], value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: status = set(p.align[3], value, bytes); break;
    default: break;
  }
  write(pref, p);
  return status;
}

// Algorithms 0 to 3 need more and more alignment and workspace; 0 accepts everything. Which is the
// first depends on D's columns. Only operands that are aligned to 16 bytes can have an epilogue.
// All but 1 that add a bias can end in a relu; 2 makes a NaN 0 there, as users report of the real
// library, and the mask of 3 lets the gradient at 0 pass, as CUTLASS' does.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = 0;
  if (!handle || asked < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (const int device = reinterpret_cast<Handle*>(handle)->device; device != current_device()) {
    fault("cublasLt: a handle of cuda:%d is asked on cuda:%d", device, current_device());
  }
  const auto d = read<Description>(desc);
  const auto p = read<Preference>(preference);
  const Layout layouts[] = {read<Layout>(a), read<Layout>(b), read<Layout>(c), read<Layout>(y)};
  if (const auto status = check(d, layouts[0], layouts[1], layouts[2], layouts[3])) {
    if (status == CUBLAS_STATUS_INVALID_VALUE) fault("cublasLt: sizes contradict each other");
    return status;
  }
  std::uint32_t element[4];
  bool wide = true;
  for (int i = 0; i < 4; ++i) {
    element[i] = static_cast<std::uint32_t>(size_of(layouts[i].type));
    if (p.align[i] < element[i]) return CUBLAS_STATUS_INVALID_VALUE;
    wide &= p.align[i] >= 16 && layouts[i].ld * element[i] % 16 == 0 &&
            layouts[i].stride * element[i] % 16 == 0;
  }
  const bool plain = d.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  if (!plain && (!aligned(d.vector, 16) || !aligned(d.mask, 16) || p.align[3] < 16)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (std::uint32_t i = 0; i < 4 && *found < asked; ++i) {
    const auto number = wide ? static_cast<std::uint32_t>(layouts[3].cols + i) % 4 : i;
    if (number > 0 && !wide) break;
    if (d.does_relu() && number == 1) continue;
    Algorithm made{kMagic, number, {}, d.family(), layouts[3].type, number * 3000};
    if (made.workspace > p.workspace) continue;
    for (int j = 0; j < 4; ++j) made.align[j] = number > 0 ? 16 : element[j];
    cublasLtMatmulHeuristicResult_t& r = results[(*found)++];
    r = {};
    write(&r.algo, made);
    r.workspaceSize = made.workspace;
    r.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  const auto d = read<Description>(desc);
  const auto ly = read<Layout>(y);
  if (const auto status = check(d, read<Layout>(a), read<Layout>(b), read<Layout>(c), ly)) {
    return status;
  }
  const auto chosen = read<Algorithm>(algo);
  if (!chosen.fits(d, ly)) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = chosen.workspace;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* y,
                              cublasLtMatrixLayout_t y_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t bytes, cudaStream_t stream) {
  const Guard guard;
  int device = -1;
  cudaGetDevice(&device);
  if (!handle || reinterpret_cast<Handle*>(handle)->device != device ||
      check_stream(stream) != cudaSuccess) {
    fault("cublasLtMatmul: handle, stream and current device are not one device's");
  }
  const auto d = read<Description>(desc);
  const auto la = read<Layout>(a_layout), lb = read<Layout>(b_layout), lc = read<Layout>(c_layout),
             ly = read<Layout>(y_layout);
  if (const auto status = check(d, la, lb, lc, ly)) {
    fault("cublasLtMatmul: %s", cublasLtGetStatusName(status));
  }
  const auto chosen = read<Algorithm>(algo);
  if (!chosen.fits(d, ly)) fault("cublasLtMatmul: the algorithm is for another product");
  const void* const operands[] = {a, b, c, y};
  for (int i = 0; i < 4; ++i) {
    if (aligned(operands[i], chosen.align[i])) continue;
    fault("cublasLtMatmul: operand %d at %p is less aligned than %u", i, operands[i],
          chosen.align[i]);
  }
  if (d.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    if (!aligned(d.vector, 16)) fault("cublasLtMatmul: a bias at %p", d.vector);
    if (!aligned(d.mask, 16)) fault("cublasLtMatmul: a mask at %p", d.mask);
  }
  if (chosen.workspace > bytes || (bytes && !aligned(workspace, 16)) ||
      (bytes && !is_device_memory(workspace, bytes, device))) {
    fault("cublasLtMatmul: workspace %p of %zu bytes, %zu needed", workspace, bytes,
          std::size_t(chosen.workspace));
  }
  if (!is_device_memory(a, extent(la), device) || !is_device_memory(b, extent(lb), device) ||
      !is_device_memory(y, extent(ly), device)) {
    fault("cublasLtMatmul: an operand reaches out of its memory");
  }
  if (d.vector &&
      !is_device_memory(d.vector, (d.sums_b() ? ly.cols : ly.rows) * size_of(ly.type), device)) {
    fault("cublasLtMatmul: the bias reaches out of its memory");
  }
  if (d.mask && !is_device_memory(d.mask, mask_bytes(d, ly), device)) {
    fault("cublasLtMatmul: the mask reaches out of its memory");
  }
  const bool f64 = ly.type == CUDA_R_64F;
  const double one = f64 ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  const double add = f64 ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  const std::size_t used = chosen.workspace;
  const Node node = node_of(d, la, lb, ly, add != 0);
  return enqueue(stream,
                 [=] {
                   statistics().add(statistics().products, node);
                   if (options().counts) return;
                   if (used) scribble(workspace, used);
                   multiply(d, la, lb, lc, ly, one, add, a, b, c, y, chosen.number);
                 }) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
