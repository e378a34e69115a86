#include "weft/core/runtime/thread_local.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <string>
#include <thread>

namespace weft {
namespace {

std::string ended;  // the names of the destroyed objects

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

struct UsesIt {
  ~UsesIt() { value = a->value; }
  static inline int value = 0;
};

TEST(ThreadLocal, OutlivesThreadLocalVariables) {
  ended.clear();
  std::thread([] {
    thread_local UsesIt made_before;
    static_cast<void>(made_before);
    a->value = 5;
  }).join();
  EXPECT_EQ(UsesIt::value, 5);
  EXPECT_EQ(ended, "a");
}

// A key of a library, which may be older than weft's or newer; a newer one runs later.
void ask_at_end(void*) { static_cast<void>(*b); }

TEST(ThreadLocal, IsMadeAnewForALaterKeyAndEndsAgain) {
  ended.clear();
  std::thread([] { static_cast<void>(*b); }).join();  // weft's own key exists now
  pthread_key_t key;
  ASSERT_EQ(pthread_key_create(&key, ask_at_end), 0);
  std::thread([&] {
    static_cast<void>(*b);
    ASSERT_EQ(pthread_setspecific(key, &key), 0);
  }).join();
  EXPECT_EQ(ended, "bbb");
  pthread_key_delete(key);
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
