#include "weft/parallel/buckets.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/base/shape.h"

namespace weft::parallel {

namespace {

constexpr const char* kOp = "plan_buckets";

}  // namespace

BucketPlan plan_buckets(std::span<const GradientSize> gradients,
                        std::span<const std::int64_t> limits, std::span<const std::size_t> order) {
  WEFT_CHECK(!limits.empty(), InvalidArgument, kOp, "got no limit");
  WEFT_CHECK(order.empty() || order.size() == gradients.size(), InvalidArgument, kOp,
             "the order has ", order.size(), " of ", gradients.size(), " gradients");
  // The bucket being filled of each dtype and device.
  struct Open {
    DType dtype;
    Device device;
    std::size_t limit = 0;
    std::int64_t bytes = 0;
    std::vector<std::size_t> members = {};
  };
  std::vector<Open> open;
  BucketPlan plan;
  for (std::size_t at = 0; at < gradients.size(); ++at) {
    const std::size_t index = order.empty() ? at : order[at];
    WEFT_CHECK(index < gradients.size(), InvalidArgument, kOp, "the order has gradient ", index,
               " of ", gradients.size());
    const GradientSize& gradient = gradients[index];
    auto bucket = std::ranges::find_if(open, [&](const Open& b) {
      return b.dtype == gradient.dtype && b.device == gradient.device;
    });
    if (bucket == open.end()) {
      bucket = open.insert(open.end(), {.dtype = gradient.dtype, .device = gradient.device});
    }
    bucket->members.push_back(index);
    bucket->bytes = checked_add(bucket->bytes, gradient.bytes, kOp);
    if (bucket->bytes < limits[bucket->limit]) continue;
    plan.push_back(std::exchange(bucket->members, {}));
    bucket->bytes = 0;
    bucket->limit = std::min(bucket->limit + 1, limits.size() - 1);
  }
  for (Open& rest : open) {
    if (!rest.members.empty()) plan.push_back(std::move(rest.members));
  }
  if (order.empty()) std::ranges::sort(plan, {}, [](const auto& b) { return b.front(); });
  return plan;
}

std::string to_string(const BucketPlan& plan) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  for (const std::vector<std::size_t>& bucket : plan) {
    for (const std::size_t index : bucket) out << index << ' ';
    out << '\n';
  }
  return out.str();
}

BucketPlan parse_bucket_plan(const std::string& text) {
  BucketPlan plan;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    in.imbue(std::locale::classic());
    std::vector<std::size_t>& bucket = plan.emplace_back();
    for (std::size_t index; in >> index;) bucket.push_back(index);
  }
  return plan;
}

}  // namespace weft::parallel
