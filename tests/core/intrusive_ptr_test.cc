#include "weft/core/base/intrusive_ptr.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace weft {
namespace {

struct Base : RefCounted {
  explicit Base(int& alive) : alive(alive) { ++alive; }
  ~Base() override { --alive; }
  int& alive;
};
struct Derived : Base {
  using Base::Base;
};

TEST(IntrusivePtr, LastOwnerDeletes) {
  int alive = 0;
  auto a = make_intrusive<Derived>(alive);
  intrusive_ptr<Base> b = a;
  EXPECT_EQ(a->use_count(), 2u);
  a = nullptr;
  EXPECT_EQ(alive, 1);
  intrusive_ptr<Base> c = std::move(b);
  EXPECT_FALSE(b);
  EXPECT_EQ(c->use_count(), 1u);
  intrusive_ptr<Base>& same = c;
  c = same;
  EXPECT_EQ(alive, 1);
  c.reset();
  EXPECT_EQ(alive, 0);
}

TEST(IntrusivePtr, CopiesInManyThreadsDeleteOnce) {
  int alive = 0;
  {
    auto shared = make_intrusive<Base>(alive);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([copy = shared] {
        for (int i = 0; i < 10000; ++i) intrusive_ptr<Base> another = copy;
      });
    }
    for (auto& thread : threads) thread.join();
    threads.clear();
    EXPECT_EQ(shared->use_count(), 1u);
  }
  EXPECT_EQ(alive, 0);
}

}  // namespace
}  // namespace weft
