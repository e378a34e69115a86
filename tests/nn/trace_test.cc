// A traced training step: modules, operations, tape and optimiser in one trace.
#include "weft/core/trace/trace.h"
#include "weft/core/runtime/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <latch>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/device.h"
#include "weft/nn/activation.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/nn/sequential.h"
#include "weft/optim/sgd.h"
#include "weft/tensor/creation.h"

namespace weft {
namespace {

using nlohmann::json;

struct Event {
  std::string category, name, module, device, shape;
  std::pair<int, int> row;
  std::int64_t begin, end, step;  // times in ns
};

struct Trace {
  std::vector<Event> spans;
  std::vector<std::pair<Event, Event>> arrows;  // the spans at both ends of each

  const Event* parent(const Event& of) const {
    const Event* found = nullptr;
    for (const Event& e : spans) {
      if (&e == &of || e.row != of.row || e.begin > of.begin || e.end < of.end) continue;
      if (e.begin == of.begin && e.end == of.end) continue;
      if (!found || e.end - e.begin < found->end - found->begin) found = &e;
    }
    return found;
  }
  std::vector<Event> of(const std::string& category) const {
    std::vector<Event> found;
    std::ranges::copy_if(spans, std::back_inserter(found),
                         [&](const Event& e) { return e.category == category; });
    return found;
  }
};

std::int64_t ns(const json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

Trace read(const Tracer& tracer) {
  const std::string path = ::testing::TempDir() + "nn_trace_test.json";
  tracer.write(path);
  std::ifstream file(path);
  const json text = json::parse(file);
  std::remove(path.c_str());
  Trace trace;
  for (const json& e : text["traceEvents"]) {
    if (e["ph"] != "X") continue;
    const json& args = e["args"];
    trace.spans.push_back({e["cat"],
                           e["name"],
                           args.value("module", ""),
                           args.value("device", ""),
                           args.value("shape", ""),
                           {e["pid"], e["tid"]},
                           ns(e["ts"]),
                           ns(e["ts"]) + ns(e["dur"]),
                           args.value("step", std::int64_t{-1})});
  }
  // The end of an arrow belongs to the innermost span around it.
  const auto innermost = [&](const json& e) {
    const Event* found = nullptr;
    for (const Event& span : trace.spans) {
      const std::int64_t at = ns(e["ts"]);
      if (span.row != std::pair<int, int>{e["pid"], e["tid"]} || at < span.begin || at >= span.end)
        continue;
      if (!found || span.end - span.begin < found->end - found->begin) found = &span;
    }
    EXPECT_NE(found, nullptr) << e;
    return found ? *found : Event();
  };
  std::map<std::string, Event> starts;
  for (const json& e : text["traceEvents"])
    if (e["ph"] == "s") starts[e["id"]] = innermost(e);
  for (const json& e : text["traceEvents"])
    if (e["ph"] == "f") trace.arrows.push_back({starts.at(e["id"]), innermost(e)});
  return trace;
}

struct Net : nn::Module<Net> {
  nn::Sequential body =
      child("body", nn::Sequential{nn::Linear(6, 5), nn::LeakyReLU(), nn::Linear(5, 2)});
  Tensor forward(const Tensor& x) { return body(x).reshape({8}); }
};

TEST(TracedStep, NestsAndConnects) {
  Net net;
  optim::SGD sgd(net.parameters());
  const Tensor x = rand({4, 6}), target = rand({8});
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    const Scoped step(&ThreadState::step, std::int64_t{3});
    nn::mse_loss(net(x), target).backward();
    sgd.step();
  }
  const Trace trace = read(tracer);
  for (const Event& a : trace.spans) {
    EXPECT_EQ(a.step, 3) << a.name;
    for (const Event& b : trace.spans) {
      const bool apart = a.end <= b.begin || b.end <= a.begin;
      const bool inside =
          (a.begin <= b.begin && b.end <= a.end) || (b.begin <= a.begin && a.end <= b.end);
      EXPECT_TRUE(apart || inside) << a.name << " and " << b.name << " cross";
    }
  }

  // Each module's span is inside that of its caller.
  std::map<std::string, std::string> parents;
  for (const Event& e : trace.of("forward")) {
    const Event* parent = trace.parent(e);
    parents[e.name + " " + e.module] = parent ? parent->name + " " + parent->module : "";
  }
  EXPECT_EQ(parents, (std::map<std::string, std::string>{{"Net ", ""},
                                                         {"Sequential body", "Net "},
                                                         {"Linear body.0", "Sequential body"},
                                                         {"LeakyReLU body.1", "Sequential body"},
                                                         {"Linear body.2", "Sequential body"}}));

  // The backward of every node is inside the phase, and an arrow leads to it from the operation
  // that recorded it: same name, same module, earlier.
  const std::vector<Event> backward = trace.of("backward");
  ASSERT_GE(backward.size(), 5u);
  EXPECT_EQ(trace.arrows.size(), backward.size());
  std::set<std::string> shapes;
  for (const Event& e : backward) {
    const Event* parent = trace.parent(e);
    ASSERT_NE(parent, nullptr);
    EXPECT_EQ(parent->category, "phase");
    EXPECT_EQ(e.device, "cpu:0");
  }
  for (const auto& [from, to] : trace.arrows) {
    EXPECT_EQ(from.category, "op");
    EXPECT_EQ(to.category, "backward");
    EXPECT_TRUE(from.name == to.name || from.name == to.name + "_") << from.name << to.name;
    EXPECT_EQ(from.module, to.module);
    EXPECT_LE(from.end, to.begin);
    EXPECT_EQ(from.shape, to.shape) << "a result and its gradient, " << from.name;
    shapes.insert(from.name + from.shape);
  }
  EXPECT_TRUE(shapes.contains("reshape[8]")) << json(shapes) << "a view, which runs nothing";
  EXPECT_TRUE(shapes.contains("linear[4,5]")) << json(shapes);

  const std::vector<Event> optimiser = trace.of("optim");
  ASSERT_EQ(optimiser.size(), 1u);
  for (const Event& e : trace.of("op")) {
    EXPECT_EQ(e.device, "cpu:0") << e.name;
  }
}

TEST(TracedStep, TwoDevicesHaveTheirRows) {
  set_host_devices(2);
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    // Each waits for the other one, so one thread cannot run both.
    std::latch both(2);
    std::vector<Tensor> outputs;
    for (const Device device : {Device("cpu:0"), Device("cpu:1")}) {
      const Tensor y = square(rand({2, 3}, device).set_requires_grad());
      autograd::add_grad_hook(y, [&both](const Tensor&) {
        both.arrive_and_wait();
        return Tensor();
      });
      outputs.push_back(y.sum());
    }
    autograd::backward(outputs);
  }
  std::set<std::string> devices;
  std::set<std::pair<int, int>> rows;
  const Trace trace = read(tracer);
  for (const Event& e : trace.of("backward")) {
    devices.insert(e.device);
    rows.insert(e.row);
    const Event* parent = trace.parent(e);
    ASSERT_NE(parent, nullptr) << e.name;
    // The caller's own part lies in the span of all devices, a worker's directly in its phase.
    if (parent->name == "parallel_backward") parent = trace.parent(*parent);
    ASSERT_NE(parent, nullptr) << e.name;
    EXPECT_EQ(parent->category, "phase");
  }
  EXPECT_EQ(devices, (std::set<std::string>{"cpu:0", "cpu:1"}));
  EXPECT_GE(rows.size(), 2u);
}

}  // namespace
}  // namespace weft
