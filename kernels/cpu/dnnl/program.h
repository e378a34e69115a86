// oneDNN for plans: programs of primitives that work only in memory of the caller.
#pragma once

#include <dnnl.hpp>

#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/base/dtype.h"
#include "weft/core/base/error.h"

namespace weft::cpu {

using dnnl_desc = dnnl::memory::desc;

const dnnl::engine& dnnl_engine();
dnnl::memory::data_type dnnl_type(DType dtype);
/// Attributes that ask for a scratchpad from the caller. The library's own one belongs to the
/// thread that made the primitive, and other threads crash with it.
dnnl::primitive_attr dnnl_attributes();

/// The descriptor of a primitive. oneDNN 3 takes the arguments of its operation at once; 2 wants
/// them as an operation descriptor first.
template <class Primitive, class... Args>
auto dnnl_forward(const dnnl::primitive_attr& attributes, const Args&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(dnnl_engine(), args..., attributes);
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(args...), attributes,
                                            dnnl_engine());
#endif
}
/// The same for a backward pass, which is described together with a forward pass on the same
/// operands. The search for another implementation reads `forward` again.
template <class Primitive, class Forward, class... Args>
auto dnnl_backward(const dnnl::primitive_attr& attributes, const Forward& forward,
                   const Args&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(dnnl_engine(), args..., forward, attributes);
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(args...), attributes,
                                            dnnl_engine(), forward);
#endif
}

/// Sets the calling thread's OpenMP team size for a scope. oneDNN reads this size when it makes or
/// runs a primitive, and a primitive must run with the size that it was made for.
class DnnlTeam {
 public:
  explicit DnnlTeam(int size);
  ~DnnlTeam();
  DnnlTeam(const DnnlTeam&) = delete;
  DnnlTeam& operator=(const DnnlTeam&) = delete;

 private:
  int previous_;
  bool changed_;
};

/// Throws Library: "[conv2d] dnnl_primitive_execute: out_of_memory (big [32,8,..)".
[[noreturn]] void throw_dnnl(const char* op, const char* call, dnnl_status_t status,
                             const std::string& shapes);

/// oneDNN makes static objects at first use: lists of implementations, and code of some kernels. To
/// be called after a use. Then, at process exit, dnnl_ended() becomes true before they are
/// destroyed.
void note_dnnl_statics();

/// Accepts every implementation.
struct Trusted {
  bool operator()(const std::string&) const { return true; }
};

/// The primitive descriptor from make(), moved on to the first implementation whose name may_use()
/// accepts. Nothing if oneDNN does not offer the combination, or offers only its reference loops,
/// which are slower than ours. Other failures throw Library.
template <class Make, class MayUse = Trusted>
auto dnnl_offer(const char* op, const char* call, const std::string& shapes, Make&& make,
                MayUse&& may_use = {}) -> std::optional<decltype(make())> {
  try {
    auto offered = make();
    do {
      const std::string implementation = offered.impl_info_str();
      if (implementation.starts_with("ref")) return std::nullopt;
      if (may_use(implementation)) return offered;
    } while (offered.next_impl());
    return std::nullopt;
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_unimplemented || e.status == dnnl_invalid_arguments) return std::nullopt;
    throw_dnnl(op, call, e.status, shapes);
  }
}

/// Returns f(). Errors of oneDNN become Library errors of weft.
template <class F>
auto dnnl_guard(const char* op, const std::string& shapes, F&& f) {
  try {
    auto result = f();
    note_dnnl_statics();
    return result;
  } catch (const dnnl::error& e) {
    throw_dnnl(op, e.what(), e.status, shapes);
  }
}

/// A sequence of primitives over numbered memories. The caller binds some of them at each run; the
/// others live in the workspace. Once built, any number of threads may run it at the same time.
class DnnlProgram {
 public:
  DnnlProgram(const char* op, std::string shapes, int team);

  /// Adds a memory that the caller binds at each run, in the order of these calls.
  int external(const dnnl_desc& desc);
  /// Adds a memory in the workspace.
  int internal(const dnnl_desc& desc);
  /// `memory` itself if it has the layout `wanted`, else a copy with it. Adds the step that copies.
  int as_layout(int memory, const dnnl_desc& wanted);
  /// The memory that a primitive should write to: `memory` itself if it has the layout `wanted`,
  /// else a stand-in, which finish_output() copies to `memory`.
  int output_layout(int memory, const dnnl_desc& wanted);
  void finish_output(int stand_in, int memory);

  /// Adds a primitive. `arguments`: pairs of DNNL_ARG_x and the number of a memory.
  void step(const dnnl::primitive& primitive, const dnnl_desc& scratchpad,
            std::initializer_list<std::pair<int, int>> arguments);

  int team() const { return team_; }
  std::size_t workspace_bytes() const { return internal_bytes_ + scratchpad_bytes_; }
  /// Runs the steps. `externals`: one pointer per external(). Throws Library.
  void run(std::span<void* const> externals, void* workspace) const;

 private:
  struct Memory {
    dnnl_desc desc;
    int external = -1;       // index of the bound pointer; if negative,
    std::size_t offset = 0;  // its place in the workspace
  };
  struct Step {
    dnnl::primitive primitive;
    std::vector<std::pair<int, int>> arguments;  // DNNL_ARG_x, memory
  };
  // A dnnl::memory holds a pointer, so each concurrent run needs its own set.
  struct Bound {
    bool ran = false;
    std::vector<dnnl::memory> memories;
    std::vector<void*> handles;
    std::vector<std::vector<dnnl_exec_arg_t>> arguments;  // per step
  };

  void reorder(int from, int to);
  std::unique_ptr<Bound> take() const;
  void give_back(std::unique_ptr<Bound> bound) const;

  const char* op_;
  std::string shapes_;
  int team_;
  std::vector<Memory> memories_;
  std::vector<Step> steps_;
  int externals_ = 0;
  std::size_t internal_bytes_ = 0;
  std::size_t scratchpad_bytes_ = 0;
  struct Idle {
    std::mutex mutex;
    std::vector<std::unique_ptr<Bound>> bounds;
  };
  std::unique_ptr<Idle> idle_ = std::make_unique<Idle>();
};

}  // namespace weft::cpu
