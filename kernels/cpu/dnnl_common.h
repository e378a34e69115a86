// oneDNN behind plans: programs of primitives whose memory is all the caller's.
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

#include "weft/core/dtype.h"
#include "weft/core/error.h"

namespace weft::cpu {

using dnnl_desc = dnnl::memory::desc;

const dnnl::engine& dnnl_engine();
dnnl::memory::data_type dnnl_type(DType dtype);
/// User scratchpad, always: the library's own is tied to the creating thread and crashes others.
dnnl::primitive_attr dnnl_attributes();

/// oneDNN reads the calling thread's OpenMP team size whenever it makes or runs a primitive; a
/// primitive must run with the size it was made for.
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

/// oneDNN keeps lists of implementations, and some kernels' code, in static objects that it makes
/// when they are first needed. To be called after that: dnnl_ended() is true before they go.
void note_dnnl_statics();

/// Any implementation of oneDNN's.
struct Trusted {
  bool operator()(const std::string&) const { return true; }
};

/// The primitive descriptor made by `make`, of the first implementation whose name may_use() takes;
/// or nothing when oneDNN does not offer the combination or only its reference loops, which are
/// slower than ours. Other failures throw.
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

/// f(), with what oneDNN throws turned into Library errors of weft.
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

/// A sequence of primitives over numbered memories: those the caller binds at each run, and those
/// that live in the workspace. Immutable once built, run by any number of threads at a time.
class DnnlProgram {
 public:
  DnnlProgram(const char* op, std::string shapes, int team);

  /// Memory bound at each run, in the order of the calls.
  int external(const dnnl_desc& desc);
  /// Memory in the workspace.
  int internal(const dnnl_desc& desc);
  /// `memory` itself when it already has the layout `wanted`, else a copy, reordered at this point.
  int as_layout(int memory, const dnnl_desc& wanted);
  /// Where a primitive should write so that `memory` gets the result: itself, or a stand-in from
  /// which finish_output() copies.
  int output_layout(int memory, const dnnl_desc& wanted);
  void finish_output(int stand_in, int memory);

  void step(const dnnl::primitive& primitive, const dnnl_desc& scratchpad,
            std::initializer_list<std::pair<int, int>> arguments);

  int team() const { return team_; }
  std::size_t workspace_bytes() const { return internal_bytes_ + scratchpad_bytes_; }
  /// One pointer per external().
  void run(std::span<void* const> externals, void* workspace) const;

 private:
  struct Memory {
    dnnl_desc desc;
    int external = -1;       // position among the bound pointers, or
    std::size_t offset = 0;  // place in the workspace
  };
  struct Step {
    dnnl::primitive primitive;
    std::vector<std::pair<int, int>> arguments;  // DNNL_ARG_x, memory
  };
  // Memory objects hold a pointer, so each concurrent run needs its own set.
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
