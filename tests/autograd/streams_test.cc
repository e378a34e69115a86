// The streams that a backward uses, on a fake device where rules compute nothing.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/function.h"
#include "weft/autograd/grad.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/fake_runtime.h"

namespace weft {
namespace {

const Device kCuda("cuda:0");

// Records which stream waits for which.
class Watched final : public testing::FakeRuntime {
 public:
  Watched() : FakeRuntime(DeviceType::cuda) {}
  std::unique_ptr<Event> new_event(int) override { return std::make_unique<Noted>(*this); }

  using Wait = std::pair<void*, void*>;  // the stream that is waited for, and the one that waits
  std::vector<Wait> waits;

 private:
  class Noted final : public Event {
   public:
    explicit Noted(Watched& runtime) : runtime_(runtime) {}
    void record(const Stream& stream) override { recorded_ = stream.handle; }
    void block(const Stream& stream) override {
      runtime_.waits.emplace_back(recorded_, stream.handle);
    }
    bool done() const override { return true; }
    void synchronize() override {}

   private:
    Watched& runtime_;
    void* recorded_ = nullptr;
  };
};

std::vector<void*> rules;  // the streams in which the rules ran

Tensor something() { return empty({1}, {DType::f32, kCuda}); }

struct Step : autograd::Function<Step> {
  static Tensor forward(autograd::Context&, const Tensor&) { return something(); }
  static std::vector<Tensor> backward(autograd::Context&, std::span<const Tensor>) {
    rules.push_back(current_stream(kCuda).handle);
    return {something()};
  }
};

// A rule with a backward of its own, into a leaf that it reads.
struct Nested : autograd::Function<Nested> {
  static Tensor forward(autograd::Context&, const Tensor&) { return something(); }
  static std::vector<Tensor> backward(autograd::Context&, std::span<const Tensor>) {
    inner.backward(something());
    rules.push_back(current_stream(kCuda).handle);
    return {something()};
  }
  static inline Tensor inner;
};

class StreamsTest : public ::testing::Test {
 protected:
  StreamsTest() {
    register_runtime(DeviceType::cuda, &device);
    for (Stream& stream : streams) stream = device.new_stream(0);
    rules.clear();
    x = something().set_requires_grad();
    h = in(0, x);
    y = in(1, h);
    set_current_stream(streams[2]);
    device.waits.clear();
  }
  ~StreamsTest() override { set_current_stream(device.default_stream(0)); }

  Tensor in(int stream, const Tensor& input) {
    set_current_stream(streams[stream]);
    return Step::apply(input);
  }
  void* handle(int stream) const { return streams[stream].handle; }

  static Watched& watched() {
    static Watched& instance = *new Watched;  // never destroyed: storages use it at the end
    return instance;
  }

  Watched& device = watched();
  Stream streams[3];
  Tensor x, h, y;
};

TEST_F(StreamsTest, RulesRunWhereTheirOperationsWereRecorded) {
  void* of_leaf = nullptr;
  autograd::add_leaf_hook(x, [&](const Tensor&) { of_leaf = current_stream(kCuda).handle; });
  y.backward(something());
  EXPECT_EQ(rules, (std::vector<void*>{handle(1), handle(0)}));
  EXPECT_EQ(of_leaf, handle(2)) << "gradients are the caller's";
  EXPECT_EQ(device.waits,
            (std::vector<Watched::Wait>{
                {handle(2), handle(1)}, {handle(1), handle(0)}, {handle(0), handle(2)}}));
  EXPECT_EQ(current_stream(kCuda), streams[2]);
}

TEST_F(StreamsTest, ResultsOfGradAreTheCallers) {
  const Tensor g = something();
  const auto result = autograd::grad({&y, 1}, {&h, 1}, {&g, 1});
  EXPECT_TRUE(result[0].defined());
  EXPECT_EQ(rules, (std::vector<void*>{handle(1)}));
  EXPECT_EQ(device.waits,
            (std::vector<Watched::Wait>{
                {handle(2), handle(1)}, {handle(1), handle(0)}, {handle(0), handle(2)}}));
}

TEST_F(StreamsTest, OneStreamNeedsNoEvent) {
  const Tensor z = in(2, in(2, x));
  device.waits.clear();
  z.backward(something());
  EXPECT_EQ(rules, (std::vector<void*>{handle(2), handle(2)}));
  EXPECT_TRUE(device.waits.empty());
}

TEST_F(StreamsTest, LeavesOfANestedBackwardAreTheOutermostCallers) {
  const Tensor p = something().set_requires_grad();
  Nested::inner = in(0, p);
  set_current_stream(streams[1]);
  const Tensor outer = Nested::apply(x);
  set_current_stream(streams[2]);
  std::vector<void*> of_leaf;
  const auto note = [&](const Tensor&) { of_leaf.push_back(current_stream(kCuda).handle); };
  autograd::add_leaf_hook(p, note);
  autograd::add_final_leaf_hook(p, note);
  device.waits.clear();
  outer.backward(something());
  Nested::inner = Tensor();
  EXPECT_EQ(rules, (std::vector<void*>{handle(0), handle(1)}));
  EXPECT_EQ(of_leaf, (std::vector<void*>{handle(2), handle(2)}));
  const std::vector<Watched::Wait> nested = {
      {handle(2), handle(1)},
      {handle(1), handle(0)},
      {handle(0), handle(2)},
      {handle(2), handle(1)},  // the rule reads it
  };
  ASSERT_GE(device.waits.size(), nested.size());
  device.waits.resize(nested.size());
  EXPECT_EQ(device.waits, nested);
  EXPECT_EQ(current_stream(kCuda), streams[2]);
}

}  // namespace
}  // namespace weft
