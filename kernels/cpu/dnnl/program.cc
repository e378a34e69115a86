#include "weft/kernels/cpu/dnnl/program.h"

#include <dnnl_debug.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "weft/core/base/simd_level.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/kernels/cpu/dnnl/library.h"

namespace weft::cpu {

namespace {

constexpr std::size_t kAlign = 64;

constinit std::atomic<bool> ended = false;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A stream of the CPU engine has no queue, but it is not documented that two threads may share one.
struct ThreadStream {
  const dnnl::stream stream{dnnl_engine()};
};
constinit ThreadLocal<ThreadStream> thread_streams;

dnnl_stream_t thread_stream() { return thread_streams->stream.get(); }

// To be called before oneDNN's first use, which fixes its instruction set. If the program has used
// it earlier, oneDNN's own choice remains.
void limit_dnnl() {
  [[maybe_unused]] static const bool done = [] {
    if (best_simd_level() == processor_simd_level()) return true;
    // The lowest limit that oneDNN knows is SSE4.1.
    dnnl_set_max_cpu_isa(best_simd_level() == SimdLevel::avx2 ? dnnl_cpu_isa_avx2
                                                              : dnnl_cpu_isa_sse41);
    return true;
  }();
}

}  // namespace

const dnnl::engine& dnnl_engine() {
  limit_dnnl();
  // Never destroyed: plans and thread streams that refer to it may end later than static objects.
  static const auto& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

bool dnnl_ended() { return ended.load(std::memory_order_relaxed); }

void note_dnnl_statics() {
  std::atexit([] { ended.store(true, std::memory_order_relaxed); });
}

std::string dnnl_name() {
  limit_dnnl();
  const dnnl_version_t& v = *dnnl_version();
  return detail::concat("oneDNN ", v.major, ".", v.minor, ".", v.patch, " isa ",
                        int(dnnl_get_effective_cpu_isa()));
}

dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::primitive_attr dnnl_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

DnnlTeam::DnnlTeam(int size) : previous_(omp_get_max_threads()), changed_(previous_ != size) {
  if (changed_) omp_set_num_threads(size);
}

DnnlTeam::~DnnlTeam() {
  if (changed_) omp_set_num_threads(previous_);
}

void throw_dnnl(const char* op, const char* call, dnnl_status_t status, const std::string& shapes) {
  WEFT_THROW(Library, op, call, ": ", dnnl_status2str(status), " (", shapes, ")");
}

DnnlProgram::DnnlProgram(const char* op, std::string shapes, int team)
    : op_(op), shapes_(std::move(shapes)), team_(team) {}

int DnnlProgram::external(const dnnl_desc& desc) {
  memories_.push_back({desc, externals_++});
  return int(memories_.size()) - 1;
}

int DnnlProgram::internal(const dnnl_desc& desc) {
  memories_.push_back({desc, -1, internal_bytes_});
  internal_bytes_ += aligned(desc.get_size());
  return int(memories_.size()) - 1;
}

int DnnlProgram::as_layout(int memory, const dnnl_desc& wanted) {
  if (memories_[memory].desc == wanted) return memory;
  const int copy = internal(wanted);
  reorder(memory, copy);
  return copy;
}

int DnnlProgram::output_layout(int memory, const dnnl_desc& wanted) {
  return memories_[memory].desc == wanted ? memory : internal(wanted);
}

void DnnlProgram::finish_output(int stand_in, int memory) {
  if (stand_in != memory) reorder(stand_in, memory);
}

void DnnlProgram::reorder(int from, int to) {
  const auto attributes = dnnl_attributes();
  const dnnl::reorder::primitive_desc desc(dnnl_engine(), memories_[from].desc, dnnl_engine(),
                                           memories_[to].desc, attributes);
  step(dnnl::reorder(desc), desc.scratchpad_desc(), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

void DnnlProgram::step(const dnnl::primitive& primitive, const dnnl_desc& scratchpad,
                       std::initializer_list<std::pair<int, int>> arguments) {
  Step step{primitive, arguments};
  if (const std::size_t bytes = scratchpad.get_size(); bytes > 0) {
    // Only one scratchpad is in use at a time, so all share the end of the workspace.
    memories_.push_back({scratchpad, -2});
    step.arguments.emplace_back(DNNL_ARG_SCRATCHPAD, int(memories_.size()) - 1);
    scratchpad_bytes_ = std::max(scratchpad_bytes_, aligned(bytes));
  }
  steps_.push_back(std::move(step));
}

std::unique_ptr<DnnlProgram::Bound> DnnlProgram::take() const {
  {
    std::lock_guard lock(idle_->mutex);
    if (!idle_->bounds.empty()) {
      auto bound = std::move(idle_->bounds.back());
      idle_->bounds.pop_back();
      return bound;
    }
  }
  auto bound = std::make_unique<Bound>();
  for (const Memory& memory : memories_) {
    bound->memories.push_back(dnnl::memory(memory.desc, dnnl_engine(), DNNL_MEMORY_NONE));
  }
  bound->handles.resize(memories_.size(), nullptr);
  for (const Step& step : steps_) {
    auto& arguments = bound->arguments.emplace_back();
    for (const auto& [name, memory] : step.arguments) {
      arguments.push_back({name, bound->memories[memory].get()});
    }
  }
  return bound;
}

void DnnlProgram::give_back(std::unique_ptr<Bound> bound) const {
  std::lock_guard lock(idle_->mutex);
  idle_->bounds.push_back(std::move(bound));
}

void DnnlProgram::run(std::span<void* const> externals, void* workspace) const {
  const DnnlTeam team(team_);
  auto bound = take();
  for (std::size_t i = 0; i < memories_.size(); ++i) {
    const Memory& memory = memories_[i];
    void* const handle = memory.external >= 0
                             ? externals[std::size_t(memory.external)]
                             : static_cast<char*>(workspace) +
                                   (memory.external == -1 ? memory.offset : internal_bytes_);
    // Setting a handle costs oneDNN an allocation; in a training step it rarely changes.
    if (bound->handles[i] == handle) continue;
    const dnnl_status_t status = dnnl_memory_set_data_handle(bound->memories[i].get(), handle);
    if (status != dnnl_success) throw_dnnl(op_, "dnnl_memory_set_data_handle", status, shapes_);
    bound->handles[i] = handle;
  }
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto& arguments = bound->arguments[i];
    const dnnl_status_t status = dnnl_primitive_execute(steps_[i].primitive.get(), thread_stream(),
                                                        int(arguments.size()), arguments.data());
    if (status != dnnl_success) throw_dnnl(op_, "dnnl_primitive_execute", status, shapes_);
  }
  if (!std::exchange(bound->ran, true)) note_dnnl_statics();
  give_back(std::move(bound));
}

}  // namespace weft::cpu
