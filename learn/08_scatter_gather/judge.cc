// Judges exercise 8, and has typical wrong solutions of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/learn/08_scatter_gather/solution.h"
#include "weft/learn/judge/lab.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/tensor/creation.h"

namespace weft::learn {
namespace {

using Tensors = std::vector<Tensor>;
struct Both {
  Tensors (*scatter)(const Tensor& x, const std::vector<Device>& devices);
  Tensor (*gather)(const Tensors& parts, Device device);
};

Tensors weft_s_scatter(const Tensor& x, const std::vector<Device>& devices) {
  return parallel::scatter(x, std::span<const Device>(devices));
}
Tensor weft_s_gather(const Tensors& parts, Device device) {
  return parallel::gather(parts, device);
}

constexpr std::int64_t kColumns = 3;
constexpr int kDevices = 4;

// Row i is 10 i, 10 i + 1, 10 i + 2.
Tensor batch(std::int64_t rows) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < kColumns; ++j) values.push_back(static_cast<float>(10 * i + j));
  }
  return from_vector(values, {rows, kColumns});
}

std::vector<float> values_of(const Tensor& x) { return x.detach().to(Device()).to_vector<float>(); }

// The parts belong on cpu:0, cpu:1 ..., the result on cpu:0. If `turned`, the parts belong on
// cpu:2, cpu:3, cpu:0, cpu:1, and the result on cpu:1, where neither x nor the first part is.
void check(Both both, std::int64_t rows, int n, bool turned) {
  std::vector<Device> devices;
  for (int i = 0; i < n; ++i) {
    devices.emplace_back(DeviceType::cpu, (turned ? i + 2 : i) % kDevices);
  }
  const Device home(DeviceType::cpu, turned ? 1 : 0);
  begin_case(detail::concat(rows, rows == 1 ? " row on " : " rows on ", n,
                            n == 1 ? " device, " : " devices, the first is ", to_string(devices[0]),
                            ", joined on ", to_string(home)));
  const Tensor x = batch(rows).set_requires_grad();
  Tensors parts;
  within_patience("is there a loop that does not end?", [&] { parts = both.scatter(x, devices); });

  const std::vector<std::int64_t> sizes = parallel::part_sizes(rows, devices.size());
  std::int64_t first = 0;
  for (std::size_t i = 0; i < std::max(parts.size(), sizes.size()); ++i) {
    require(i < sizes.size(), "there are ", parts.size(), " parts, ", sizes.size(),
            " are enough: ", rows, " / ", n, " rounded up is ", sizes[0],
            sizes[0] == 1 ? " row" : " rows", " each, and an empty part is no part");
    require(i < parts.size(), "there are ", parts.size(), " parts, so row ", first,
            " is lost: each but the last has ", rows, " / ", n, " rows, rounded up");
    require(parts[i].defined() && parts[i].dim() == 2 && parts[i].shape()[1] == kColumns, "part ",
            i, " has not the shape [rows, ", kColumns, "]");
    require(parts[i].shape()[0] == sizes[i], "part ", i, " has ", parts[i].shape()[0],
            parts[i].shape()[0] == 1 ? " row" : " rows", ", expected ", sizes[i],
            ": each but the last has ", rows, " / ", n, ", rounded up");
    require(parts[i].device() == devices[i], "part ", i, " is on ", to_string(parts[i].device()),
            ", and should be on ", to_string(devices[i]));
    const std::vector<float> got = values_of(parts[i]);
    require(got[0] == static_cast<float>(10 * first), "part ", i, " begins with row ",
            static_cast<int>(got[0]) / 10, ", expected row ", first,
            ": the rows stay together, in order");
    require(parts[i].requires_grad(), "part ", i,
            " has no tape: what does not record (raw::, detach()) loses the way back to x");
    first += sizes[i];
  }

  // Another factor for each part, so that a gradient in the wrong place is seen.
  Tensors results;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    results.push_back(parts[i] * static_cast<double>(i + 1));
  }
  const Tensor whole = both.gather(results, home);
  require(whole.defined() && whole.shape() == x.shape(), "gather gives shape ",
          whole.defined() ? to_string(whole.shape()) : "of nothing", ", expected ",
          to_string(x.shape()));
  require(whole.device() == home, "gather's result is on ", to_string(whole.device()),
          ", and should be on ", to_string(home));
  require(whole.requires_grad(),
          "gather's result has no tape: what does not record loses the way "
          "back to the parts");
  const std::vector<float> got = values_of(whole), from = values_of(x);
  std::vector<float> factors;
  for (std::size_t i = 0; i < sizes.size(); ++i) factors.resize(factors.size() + sizes[i], i + 1);
  for (std::size_t i = 0; i < got.size(); ++i) {
    require(got[i] == from[i] * factors[i / kColumns], "gather's row ", i / kColumns, " has ",
            got[i], ", expected ", from[i] * factors[i / kColumns],
            ": the parts are to be joined in their order");
  }
  whole.sum().backward();
  require(x.grad().defined(), "x has no gradient after backward");
  const std::vector<float> gradient = values_of(x.grad());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    require(gradient[i] == factors[i / kColumns], "the gradient of x's row ", i / kColumns, " is ",
            gradient[i], ", expected ", factors[i / kColumns],
            ": each row is in one part, which hands its gradient back as it is");
  }
}

std::string judge(Both both) {
  set_host_devices(kDevices);
  for (const std::int64_t rows : {6, 7, 5, 1, 3, 32}) {
    for (const int n : {3, 1, 2, 4}) {
      for (const bool turned : {false, true}) check(both, rows, n, turned);
    }
  }
  return "parts, devices and gradients for 1 to 4 devices, also where the rows do not divide";
}

// --- Wrong ones ----------------------------------------------------------------------------------

Tensors cut(const Tensor& x, const std::vector<Device>& devices, std::int64_t each) {
  Tensors parts;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * each;
    if (first + each > x.shape()[0]) break;
    parts.push_back(x.narrow(0, first, each).to(devices[i]));
  }
  return parts;
}
// Rounded down.
Tensors loses_rows(const Tensor& x, const std::vector<Device>& devices) {
  return cut(x, devices, x.shape()[0] / std::ssize(devices));
}
// Without looking where x ends.
Tensors beyond_x(const Tensor& x, const std::vector<Device>& devices) {
  const std::int64_t n = std::ssize(devices), each = (x.shape()[0] + n - 1) / n;
  Tensors parts;
  for (std::int64_t i = 0; i < n; ++i) {
    parts.push_back(x.narrow(0, i * each, each).to(devices[i]));
  }
  return parts;
}
// As even as possible, with empty parts if need be.
Tensors evenly(const Tensor& x, const std::vector<Device>& devices) {
  Tensors parts;
  std::int64_t first = 0;
  for (std::int64_t i = 0, n = std::ssize(devices); i < n; ++i) {
    const std::int64_t rows = x.shape()[0] / n + (i < x.shape()[0] % n);
    parts.push_back(x.narrow(0, first, rows).to(devices[i]));
    first += rows;
  }
  return parts;
}
Tensors stays(const Tensor& x, const std::vector<Device>& devices) {
  Tensors parts = weft_s_scatter(x, devices);
  for (Tensor& part : parts) part = part.to(devices[0]);
  return parts;
}
// Part i on cpu:i, whatever devices[i] is.
Tensors by_number(const Tensor& x, const std::vector<Device>& devices) {
  Tensors parts = weft_s_scatter(x, devices);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i] = parts[i].to(Device(DeviceType::cpu, static_cast<int>(i)));
  }
  return parts;
}
Tensors no_tape(const Tensor& x, const std::vector<Device>& devices) {
  return weft_s_scatter(x.detach(), devices);
}
Tensors other_order(const Tensor& x, const std::vector<Device>& devices) {
  Tensors rows;
  for (std::int64_t i = x.shape()[0]; i-- > 0;) rows.push_back(x.narrow(0, i, 1));
  return weft_s_scatter(cat(rows), devices);
}
Tensor backwards(const Tensors& parts, Device device) {
  Tensors reversed(parts.rbegin(), parts.rend());
  return weft_s_gather(reversed, device);
}
Tensor not_moved(const Tensors& parts, Device) { return cat(parts); }
Tensor on_the_first_parts(const Tensors& parts, Device) {
  return weft_s_gather(parts, parts[0].device());
}
Tensor sums(const Tensors& parts, Device device) {
  Tensor sum = parts[0].to(device);
  for (std::size_t i = 1; i < parts.size(); ++i) sum = sum + parts[i].to(device);
  return sum;
}
Tensor detaches(const Tensors& parts, Device device) {
  Tensors copies;
  for (const Tensor& part : parts) copies.push_back(part.detach());
  return weft_s_gather(copies, device);
}

const std::vector<WrongOne<Both>> kWrong = {
    {"loses_rows", {loses_rows, weft_s_gather}, "part 0 has 1 row, expected 2"},
    {"beyond_x", {beyond_x, weft_s_gather}, "it threw an exception: [narrow]"},
    {"evenly", {evenly, weft_s_gather}, "part 2 has 1 row, expected 2"},
    {"stays", {stays, weft_s_gather}, "part 1 is on cpu:0, and should be on cpu:1"},
    {"by_number", {by_number, weft_s_gather}, "part 0 is on cpu:0, and should be on cpu:2"},
    {"no_tape", {no_tape, weft_s_gather}, "part 0 has no tape"},
    {"other_order", {other_order, weft_s_gather}, "part 0 begins with row 5, expected row 0"},
    {"backwards", {weft_s_scatter, backwards}, "the parts are to be joined in their order"},
    {"not_moved", {weft_s_scatter, not_moved}, "it threw an exception: [cat]"},
    {"on_the_first_parts",
     {weft_s_scatter, on_the_first_parts},
     "gather's result is on cpu:2, and should be on cpu:1"},
    {"sums", {weft_s_scatter, sums}, "gather gives shape [2,3], expected [6,3]"},
    {"detaches", {weft_s_scatter, detaches}, "gather's result has no tape"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "08_scatter_gather", judge, Both{scatter, gather},
                 Both{weft_s_scatter, weft_s_gather}, kWrong);
}
