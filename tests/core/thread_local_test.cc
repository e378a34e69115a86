#include "weft/core/thread_local.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace weft {
namespace {

std::string ended;  // the names of the objects that have been destroyed

template <char kName>
struct Named {
  ~Named() { ended += kName; }
  int value = 0;
};
constinit ThreadLocal<Named<'a'>> a;
constinit ThreadLocal<Named<'b'>> b;

TEST(ThreadLocal, IsTheThreadsOwnAndEndsWithIt) {
  ended.clear();
  a->value = 1;
  std::thread([] {
    EXPECT_EQ(a.get(), nullptr);
    EXPECT_EQ(b->value, 0);
    EXPECT_EQ(a->value, 0);
    a->value = 2;
    EXPECT_EQ(a.get()->value, 2);
    EXPECT_EQ(a.get(), &*a);
  }).join();
  EXPECT_EQ(ended, "ab") << "the last made first";
  EXPECT_EQ(a->value, 1);
  EXPECT_EQ(b.get(), nullptr);
}

struct AsksAgain {
  ~AsksAgain() { ++a->value; }
};
constinit ThreadLocal<AsksAgain> asks_again;

TEST(ThreadLocal, IsMadeAnewForADestructorThatAsks) {
  ended.clear();
  std::thread([] {
    static_cast<void>(*asks_again);
    static_cast<void>(*a);
  }).join();
  EXPECT_EQ(ended, "aa");
}

struct Outer {
  Outer() { inner = b->value = 3; }
  int inner = 0;
};
constinit ThreadLocal<Outer> outer;

TEST(ThreadLocal, MayBeMadeOfOthers) {
  ended.clear();
  std::thread([] {
    EXPECT_EQ(outer->inner, 3);
    EXPECT_EQ(b->value, 3);
  }).join();
  EXPECT_EQ(ended, "b");
}

}  // namespace
}  // namespace weft
