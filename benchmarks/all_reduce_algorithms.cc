#include "weft/benchmarks/all_reduce_algorithms.h"

#include <cstddef>
#include <map>
#include <span>

#include "weft/comm/backend/backends.h"
#include "weft/comm/backend/collectives.h"
#include "weft/learn/03_tree_and_doubling/reference/reference.h"
#include "weft/learn/judge/messages.h"

namespace weft::bench {
namespace {

using comm::Backend, comm::Buffer, comm::Deadline, comm::ReduceOp;

template <void (*algorithm)(Backend&, const Buffer&, ReduceOp, const Deadline&)>
struct By final : comm::BackendOver {
  using BackendOver::BackendOver;
  const char* name() const override { return "algorithm"; }
  void all_reduce(const Buffer& x, ReduceOp op, const Deadline& deadline) override {
    algorithm(*this, x, op, deadline);
  }
};

// The lab's algorithms, which add up numbers in f32.
template <void (*algorithm)(learn::Messages&, std::span<float>)>
void of_lab(Backend& backend, const Buffer& x, ReduceOp, const Deadline& deadline) {
  learn::Messages me(backend, deadline);
  algorithm(me, {static_cast<float*>(x.data), static_cast<std::size_t>(x.count)});
}

template <auto algorithm>
comm::BackendMaker over_ring() {
  return comm::backend_over<By<algorithm>>(comm::ring_backend("127.0.0.1"));
}

const std::map<std::string, comm::BackendMaker (*)()> kMakers = {
    {"direct", over_ring<comm::direct_all_reduce>},
    {"ring", over_ring<comm::ring_all_reduce>},
    {"tree", over_ring<of_lab<learn::reference::tree_all_reduce>>},
    {"doubling", over_ring<of_lab<learn::reference::doubling_all_reduce>>}};

}  // namespace

std::vector<std::string> all_reduce_algorithms() { return {"direct", "ring", "tree", "doubling"}; }

comm::BackendMaker make_algorithm(const std::string& name) { return kMakers.at(name)(); }

}  // namespace weft::bench
