// Ranks with the all-reduce of docs/adding.md: it must give the sum, and DistributedDataParallel
// the same gradients as with weft's own.
#include "weft/tests/docs/own_backend.h"

#include <cstdio>
#include <memory>
#include <vector>

std::vector<float> gradients(const std::shared_ptr<comm::ProcessGroup>& group) {
  manual_seed(1);
  nn::Sequential model{nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 3)};
  parallel::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-4});
  manual_seed(static_cast<std::uint64_t>(10 + group->rank()));
  for (int step = 0; step < 2; ++step) ddp(randn({4, 6})).square().mean().backward();
  std::vector<float> all;
  for (const Tensor& parameter : model.parameters()) {
    for (const float value : parameter.grad().to_vector<float>()) all.push_back(value);
  }
  return all;
}

int main() {
#include "weft/tests/docs/own_backend_use.inc"
  const Tensor x = full({1000}, group->rank() + 1);
  group->all_reduce(x).wait();
  const double sum = x[999].item<double>();
  const auto builtin = comm::init_process_group();
  const std::vector<float> own = gradients(group), expected = gradients(builtin);
  const bool same = own == expected;
  std::printf("rank %d of %d: the sum is %g; %zu gradients by %s are %s by %s\n", group->rank(),
              group->size(), sum, own.size(), group->backend(), same ? "those" : "others than",
              builtin->backend());
  return sum == group->size() * (group->size() + 1) / 2.0 && same ? 0 : 1;
}
