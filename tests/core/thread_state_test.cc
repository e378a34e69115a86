#include "weft/core/runtime/thread_state.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"

namespace weft {
namespace {

TEST(ThreadState, EveryThreadHasItsOwnDefaults) {
  thread_state().grad_enabled = false;
  thread_state().rank = 3;
  std::thread([] {
    EXPECT_TRUE(thread_state().grad_enabled);
    EXPECT_EQ(thread_state().rank, 0);
    EXPECT_EQ(thread_state().device, Device("cpu:0"));
    EXPECT_TRUE(thread_state().allow_tf32_conv);
    EXPECT_FALSE(thread_state().allow_tf32_matmul);
  }).join();
  thread_state() = ThreadState();
}

struct LooksAtEnd {
  ~LooksAtEnd() { rank = thread_state().rank; }
  static inline int rank = 0;
};

TEST(ThreadState, OutlivesThreadLocalVariables) {
  std::thread([] {
    thread_local LooksAtEnd made_before;
    static_cast<void>(made_before);
    thread_state().rank = 5;
  }).join();
  EXPECT_EQ(LooksAtEnd::rank, 5);
}

TEST(ThreadState, GuardSwapsAndRestores) {
  ThreadState job;
  job.rank = 7;
  job.deterministic = true;
  {
    const ThreadStateGuard guard(job);
    EXPECT_EQ(thread_state().rank, 7);
    thread_state().rank = 8;
  }
  EXPECT_EQ(thread_state().rank, 0);
  EXPECT_FALSE(thread_state().deterministic);
}

TEST(ThreadState, ScopedRestoresOnException) {
  try {
    const Scoped no_grad(&ThreadState::grad_enabled, false);
    EXPECT_FALSE(thread_state().grad_enabled);
    throw 1;
  } catch (int) {
  }
  EXPECT_TRUE(thread_state().grad_enabled);
}

TEST(ModulePath, JoinsTheNamedScopes) {
  EXPECT_EQ(module_path(), "");
  const PathScope root(nullptr);
  EXPECT_EQ(module_path(), "");
  {
    const PathScope layer("layer1"), empty(""), block("0");
    EXPECT_EQ(module_path(), "layer1.0");
  }
  EXPECT_EQ(module_path(), "");
}

TEST(ModulePath, InternedIsOneObjectPerPathAndStays) {
  EXPECT_EQ(interned_path(), nullptr);
  const PathNode* inner = nullptr;
  {
    const std::string short_lived = "layer1";
    const PathScope root(nullptr), outer(short_lived.c_str());
    {
      const PathScope empty(""), scope("conv");
      inner = interned_path();
      EXPECT_EQ(interned_path(), inner) << "found by its text, then remembered";
    }
    EXPECT_EQ(module_path(interned_path()), "layer1");
    EXPECT_EQ(inner->parent, interned_path());
  }
  {
    const PathScope root(nullptr);
    EXPECT_EQ(interned_path(), nullptr);
  }
  EXPECT_EQ(module_path(inner), "layer1.conv");
  const Scoped within(&ThreadState::path, inner);
  EXPECT_EQ(interned_path(), inner);
  EXPECT_EQ(module_path(), "layer1.conv");
  const PathScope again("conv");
  EXPECT_NE(interned_path(), inner);
}

TEST(ModulePath, ThreadsThatShareAPathInternItOnce) {
  const PathScope layer("shared"), conv("by all");
  const PathNode* const path = thread_state().path;
  std::vector<const PathNode*> found(4);
  std::vector<std::thread> threads;
  for (const PathNode*& mine : found) {
    threads.emplace_back([&mine, path] {
      const Scoped within(&ThreadState::path, path);
      mine = interned_path();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const PathNode* mine : found) EXPECT_EQ(mine, interned_path());
}

TEST(CurrentStream, IsTheDefaultUntilSetAndPerThread) {
  EXPECT_EQ(current_stream(Device("cpu:5")).handle, nullptr);
  EXPECT_WEFT_ERROR(current_stream(Device("cuda:0")), Device, "this build has no CUDA");

  static testing::FakeRuntime cuda(DeviceType::cuda, 2);
  register_runtime(DeviceType::cuda, &cuda);
  const Device device("cuda:1");
  const Stream own = cuda.new_stream(1);
  EXPECT_EQ(current_stream(device), cuda.default_stream(1));
  EXPECT_EQ(set_current_stream(own), cuda.default_stream(1));
  EXPECT_EQ(current_stream(device), own);
  EXPECT_EQ(current_stream(Device("cuda:0")), cuda.default_stream(0));
  std::thread([&] { EXPECT_EQ(current_stream(device), cuda.default_stream(1)); }).join();
  EXPECT_EQ(set_current_stream(cuda.default_stream(1)), own);
  EXPECT_WEFT_ERROR(current_stream(Device("cuda:2")), Device, "2 devices are visible");
  EXPECT_WEFT_ERROR(current_stream(Device(DeviceType::cuda, 1000)), Device, "[cuda:1000]");
  EXPECT_WEFT_ERROR(current_stream(Device(DeviceType::cuda, -1)), Device, "[cuda:-1]");
}

}  // namespace
}  // namespace weft
