#include "weft/parallel/named_state.h"

#include <locale>
#include <sstream>
#include <string>
#include <vector>

#include "weft/parallel/coalesced.h"
#include "weft/parallel/tensor_layout.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

std::string layouts_of(const optim::NamedTensors& tensors) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  for (const auto& [name, x] : tensors) out << TensorLayout{name, x.dtype(), x.shape()};
  return out.str();
}

optim::NamedTensors tensors_of(const std::string& layouts) {
  optim::NamedTensors tensors;
  std::istringstream in(layouts);
  in.imbue(std::locale::classic());
  for (TensorLayout layout; in >> layout;) {
    tensors.emplace_back(layout.name, empty(layout.shape, {layout.dtype, Device()}));
  }
  return tensors;
}

}  // namespace

optim::NamedTensors broadcast_named(comm::ProcessGroup& group, optim::NamedTensors tensors,
                                    int root) {
  const bool is_root = group.rank() == root;
  if (!is_root) tensors.clear();
  const std::string layouts = group.broadcast_object(layouts_of(tensors), root);
  if (!is_root) tensors = tensors_of(layouts);
  std::vector<Tensor> values;
  for (auto& [name, x] : tensors) values.push_back(x = raw::contiguous(x.to(Device())));
  broadcast_coalesced(group, values, root);
  return tensors;
}

}  // namespace weft::parallel
